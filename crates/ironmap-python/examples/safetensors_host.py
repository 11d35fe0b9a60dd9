"""Loads tensors from a file of a mounted file system, around the page cache: `safetensors_host.py FILE`."""

import sys

import ironmap
import safetensors.numpy

with ironmap.open(sys.argv[1]) as file:
    tensors = safetensors.numpy.load(file.read())
    if not file.raw:
        print(f"the kernel serves the file: {file.why}", file=sys.stderr)
for name, tensor in sorted(tensors.items()):
    print(name, tensor.shape, tensor.dtype, float(tensor.sum()))
