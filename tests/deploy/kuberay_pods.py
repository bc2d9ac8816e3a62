"""Convert a KubeRay manifest for validation with plain Kubernetes schemas: pod templates become Pods.

The fields of the RayCluster itself are not checked: their schema comes with the operator.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml


def to_plain_pods(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The document itself, or the pods of a RayCluster."""
    if document["kind"] != "RayCluster":
        yield document
        return
    spec = document["spec"]
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        name = group.get("groupName", "head")
        template = group["template"]
        named = {"metadata": {**template["metadata"], "name": name}, "spec": template["spec"]}
        yield {"apiVersion": "v1", "kind": "Pod", **named}


if __name__ == "__main__":
    documents = yaml.safe_load_all(Path(sys.argv[1]).read_text("utf-8"))
    sys.stdout.write(yaml.safe_dump_all([one for document in documents for one in to_plain_pods(document)]))
