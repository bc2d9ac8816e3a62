"""`mstar port transformers:ClassName`: write a folder with a model around a network of transformers.

The class decides what is written:

| kind | a class that | model file |
|---|---|---|
| decoder | generates from token ids alone | `CausalLM`, paged or with the library's own cache; token by token |
| one pass | gives its result for one input in one call: encoders, heads for CTC and classification | one op |
| composite | has neither: encoder-decoders, image and speech inputs | none: PORTING.md proposes components and walks |

Each folder has a tiny config, weights for it, a test against the library, and PORTING.md, which names what needs a hand
with file and line of the reference.
"""

from __future__ import annotations

import argparse
import keyword
import re
from importlib import resources
from pathlib import Path
from pprint import pformat
from string import Template
from typing import Any

from mstar.cli.port.decoder_choice import choose_decoder
from mstar.cli.port.porting_notes import describe
from mstar.cli.port.reference import Reference
from mstar.cli.port.tiny_network import find_sample, make_tiny, save
from mstar.errors import LoadError, Unsupported

LIBRARY = "transformers:"
_ENDINGS = re.compile(r"(ForCausalLM|LMHeadModel|ForConditionalGeneration|Model)$")
_OTHER_INPUTS = ("pixel_values", "input_features", "input_values", "decoder_input_ids")
_TEMPLATES = "mstar.cli.port"


def add_port(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to a parser."""
    text = "Write a model around a network of transformers, with a tiny config, a test against the library and notes."
    port = commands.add_parser("port", help=text, description=text)
    port.add_argument("reference", help="transformers:CLASS, such as transformers:LlamaForCausalLM.")
    port.add_argument("name", nargs="?", help="Name of the model and its folder (default: after the class).")
    port.set_defaults(run=lambda options: _port(options.reference, options.name))


def _port(target: str, name: str | None) -> None:
    if not target.startswith(LIBRARY):
        fix = f"pass {LIBRARY}CLASS, such as {LIBRARY}LlamaForCausalLM; `mstar new` starts any other model"
        raise LoadError(f"{target} does not name a class of transformers\n  fix: {fix}")
    reference = Reference(target.removeprefix(LIBRARY))
    module = name or _snake_case(_ENDINGS.sub("", reference.name))
    if not module.isidentifier() or keyword.iskeyword(module):
        raise LoadError(f"{module!r} cannot be the name of a Python module\n  fix: pass another name after the class")
    folder = Path(module)
    if folder.exists():
        raise LoadError(f"{folder} exists already\n  fix: choose another name, or remove it")
    network, fields = make_tiny(reference)
    texts, why_not = dict[str, str](), ""
    try:
        texts = _texts(reference, network, module)
    except Unsupported as reason:
        why_not = str(reason)
    notes = describe(reference, network, module, why_not)
    folder.mkdir()
    if texts:
        config = pformat(dict(fields), width=100, sort_dicts=False)
        names = {"module": module, "reference": reference.name, "config": reference.config_class.__name__}
        texts[f"tiny_{module}.py"] = _fill("tiny.py.txt", names | {"fields": config})
        save(network, folder / "weights")
        print(folder / "weights")
    for file, text in {**texts, "PORTING.md": notes}.items():
        (folder / file).write_text(text, encoding="utf-8")
        print(folder / file)
    if texts:
        print(f"\nnext: cd {module} && mstar check {module}.py && python -m pytest")
    else:
        print(f"\nnext: read {folder / 'PORTING.md'}: it proposes components and a walk, with lines of the reference")


def _texts(reference: Reference, network: Any, module: str) -> dict[str, str]:
    """Model file and test. Raises Unsupported for a composite."""
    names = {"module": module, "class_name": _class_name(module), "reference": reference.name}
    if reference.generates:
        if not _reads_tokens_only(reference, network):
            raise Unsupported("it generates, and reads more than token ids")
        decoder = choose_decoder(network)
        names |= {"decoder": decoder.source, "why": decoder.why, "checksum": decoder.checksum}
        return {
            f"{module}.py": _fill("decoder.py.txt", names),
            f"test_{module}.py": _fill("test_decoder.py.txt", names),
        }
    sample = find_sample(network)
    if sample is None:
        raise Unsupported(f"no `{network.main_input_name}` alone gives a result in one call")
    kind, input_dims = ("Int64", "T") if sample.example.ndim == 1 and sample.input == "input_ids" else ("Float32", "")
    input_dims = input_dims or " ".join("CHW"[-sample.example.ndim :] if sample.example.ndim > 1 else "S")
    output_dims = " ".join("NDEF"[: sample.result.ndim])
    names |= {"input": sample.input, "input_type": f'{kind}[Tensor, "{input_dims}"]', "output": sample.output}
    names |= {"output_dims": output_dims, "shape": repr(tuple(sample.example.shape))}
    names |= {"types": "Float32, Int64" if kind == "Int64" else "Float32"}
    names |= {"make": "integers(3, 100" if kind == "Int64" else "normal(0, 1", "dtype": kind.lower()}
    return {
        f"{module}.py": _fill("one_pass.py.txt", names),
        f"test_{module}.py": _fill("test_one_pass.py.txt", names),
    }


def _reads_tokens_only(reference: Reference, network: Any) -> bool:
    is_other = network.config.is_encoder_decoder or any(name in reference.inputs for name in _OTHER_INPUTS)
    return not is_other and "input_ids" in reference.inputs


def _fill(template: str, names: dict[str, str]) -> str:
    text = (resources.files(_TEMPLATES) / "template" / template).read_text(encoding="utf-8")
    return Template(text).substitute(names)


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _class_name(module: str) -> str:
    return "".join(word.capitalize() for word in module.split("_"))
