"""The form in which notebooks are kept: nothing but their cells."""

import json

#: Any Python that has simgpu: Jupyter calls the kernel of the environment that it runs in python3.
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def stripped(text):
    """The text of a notebook's file without what a run or an editor leaves in it: outputs, counts, metadata."""
    notebook = json.loads(text)
    document = {
        "cells": [_cell(cell) for cell in notebook["cells"]],
        "metadata": METADATA,
        "nbformat": notebook["nbformat"],
        "nbformat_minor": notebook["nbformat_minor"],
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _cell(cell):
    run = {"execution_count": None, "outputs": []} if cell["cell_type"] == "code" else {}
    source = "".join(cell["source"]).rstrip().splitlines(keepends=True)
    return {"cell_type": cell["cell_type"], "id": cell["id"], "metadata": {}, **run, "source": source}
