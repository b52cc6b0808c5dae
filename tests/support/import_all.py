"""Imports every subpackage of an installed `looped`; run with the interpreter to be checked."""

import importlib
import importlib.util
import pkgutil

import looped

names = [
    module.name
    for module in pkgutil.walk_packages(looped.__path__, "looped.")
    if not module.name.endswith(".__main__")
]
if importlib.util.find_spec("triton") is None:
    print("looped.pallas_kernels.triton.kernels is not imported: it needs triton, an extra")
    names.remove("looped.pallas_kernels.triton.kernels")
for name in names:
    importlib.import_module(name)
missing = {"looped.sched", "looped.pallas_kernels", "looped.convert", "looped.cli"} - set(names)
if missing:
    raise SystemExit(f"not in the installed package: {sorted(missing)}")
print(f"imported {len(names)} modules of looped")
