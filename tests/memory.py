"""What an object holds in memory."""

import gc
import sys
from types import BuiltinFunctionType, FunctionType, ModuleType

#: What belongs to the program and not to what it holds.
PROGRAM = (type, ModuleType, FunctionType, BuiltinFunctionType)


def memory_of(root: object) -> dict[str, int]:
    """How many objects ``root`` leads to, itself included, and their bytes."""
    seen: dict[int, object] = {}
    todo = [root]
    while todo:
        one = todo.pop()
        if id(one) not in seen and not isinstance(one, PROGRAM):
            seen[id(one)] = one
            todo += gc.get_referents(one)
    return {"objects": len(seen), "bytes": sum(map(sys.getsizeof, seen.values()))}
