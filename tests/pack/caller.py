"""In a process of its own, whose libcuda.so.1 is what LD_LIBRARY_PATH says: load a pack and call it.

Reads JSON from stdin, {library, prefix, folder, device, members, calls, sized, threads}, and prints what every call
returned, [status, text] each, that of loading first, and the text of the thread that loaded; of `sized`, at the
end, what the workspace's function returns, with the bytes.
"""

from __future__ import annotations

import ctypes
import json
import sys
from concurrent.futures import ThreadPoolExecutor

C_TYPES = {"CUdeviceptr": ctypes.c_uint64, "int64_t": ctypes.c_int64, "float": ctypes.c_float}


def main() -> None:
    asked = json.load(sys.stdin)
    library, prefix = ctypes.CDLL(asked["library"]), asked["prefix"]
    members = [(name, C_TYPES[kind]) for name, kind in asked["members"]]
    struct = type("Args", (ctypes.Structure,), {"_fields_": members})
    launch, error = getattr(library, prefix), getattr(library, f"{prefix}_error")
    error.restype = ctypes.c_char_p
    pack = ctypes.c_void_p()

    def outcome(status: int) -> tuple[int, str]:
        return status, error().decode() if status else ""

    def call(given: dict[str, float]) -> tuple[int, str]:
        values = {name: x for name, x in given.items() if name != "stream"}
        stream = ctypes.c_void_p(given.get("stream", 0))
        return outcome(launch(pack, ctypes.byref(struct(**values)), stream))

    def asked_for(given: dict[str, float]) -> tuple[int, str, int]:
        size = getattr(library, f"{prefix}_workspace")
        found = ctypes.c_int64(-1)
        return *outcome(size(pack, ctypes.byref(struct(**given)), ctypes.byref(found))), found.value

    load, device = getattr(library, f"{prefix}_load"), asked["device"]
    results = [outcome(load(ctypes.byref(pack), asked["folder"].encode(), device))]
    if pack.value:
        with ThreadPoolExecutor(asked["threads"]) as pool:
            results += pool.map(call, asked["calls"])
            results += pool.map(asked_for, asked["sized"])
        getattr(library, f"{prefix}_unload")(pack)
    # Calls that failed did so on other threads: this one's text is that of loading.
    print(json.dumps({"results": results, "text_here": error().decode()}))


main()
