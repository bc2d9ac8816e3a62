// Renders a Helm chart without Helm, which cannot be installed everywhere: the same language (Go's templates), the same
// functions (sprig), and of Helm's own `include`, `required` and `toYaml`. It knows neither hooks nor sub-charts.
//
//	render CHART VALUES...    values.yaml of the chart first, each file over the one before; to stdout as YAML
package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig"
	"gopkg.in/yaml.v3"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func read(path string) map[string]interface{} {
	text, err := os.ReadFile(path)
	check(err)
	found := map[string]interface{}{}
	check(yaml.Unmarshal(text, &found))
	return found
}

func merge(under, over map[string]interface{}) {
	for key, value := range over {
		inner, isMap := value.(map[string]interface{})
		if there, isThere := under[key].(map[string]interface{}); isMap && isThere {
			merge(there, inner)
		} else {
			under[key] = value
		}
	}
}

func functions(page *template.Template) template.FuncMap {
	known := sprig.TxtFuncMap()
	known["include"] = func(name string, data interface{}) (string, error) {
		var out bytes.Buffer
		err := page.ExecuteTemplate(&out, name, data)
		return out.String(), err
	}
	known["required"] = func(why string, value interface{}) (interface{}, error) {
		if value == nil || value == "" {
			return nil, fmt.Errorf("%s", why)
		}
		return value, nil
	}
	known["toYaml"] = func(value interface{}) (string, error) {
		text, err := yaml.Marshal(value)
		return strings.TrimSuffix(string(text), "\n"), err
	}
	return known
}

func main() {
	folder := os.Args[1]
	values := read(filepath.Join(folder, "values.yaml"))
	for _, path := range os.Args[2:] {
		merge(values, read(path))
	}
	chart := map[string]interface{}{}
	for key, value := range read(filepath.Join(folder, "Chart.yaml")) {
		chart[strings.ToUpper(key[:1])+key[1:]] = value
	}
	data := map[string]interface{}{
		"Values":  values,
		"Chart":   chart,
		"Release": map[string]interface{}{"Name": "mstar", "Namespace": "default", "Service": "Helm"},
	}
	page := template.New("chart").Option("missingkey=error")
	page.Funcs(functions(page))
	paths, err := filepath.Glob(filepath.Join(folder, "templates", "*"))
	check(err)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		check(err)
		_, err = page.New(filepath.Base(path)).Parse(string(text))
		check(err)
	}
	for _, path := range paths {
		if filepath.Ext(path) == ".yaml" {
			fmt.Println("---")
			check(page.ExecuteTemplate(os.Stdout, filepath.Base(path), data))
		}
	}
}
