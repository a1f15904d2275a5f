"""Lets the workers of the tests start without torch's compiler, which they do not use.

torch.optim loads `torch._dynamo` when the first optimizer is made (torch/_compile.py,
torch/optim/optimizer.py), only to tell it what not to compile. That is nearly half of the processor
time in which a worker starts, and the tests start hundreds. The stand-in takes note of what is not
to be compiled; whatever else is asked of it loads the real one, which is then told.

At the end of a process all that torch has loaded is not searched for cycles once more.

Python imports `sitecustomize` at each start; tests/conftest.py puts this folder on the path.
"""

import atexit
import gc
import importlib
import sys
from types import ModuleType


class Later(ModuleType):
    """Is `torch._dynamo` until somebody compiles."""

    def __init__(self):
        super().__init__("torch._dynamo")
        self._left_alone = []

    def graph_break(self):
        """Outside a compilation the real one does nothing either."""

    def disable(self, function=None, *arguments, **options):
        """What is not to be compiled is as it is, as long as nothing is compiled."""
        if options != {"wrapping": False}:  # not from torch/_compile.py
            return self.real().disable(function, *arguments, **options)
        self._left_alone.append(function)
        return function

    def real(self):
        """The compiler itself, from now on for all."""
        if sys.modules[self.__name__] is self:
            del sys.modules[self.__name__]
        for function in self._left_alone:
            vars(function).pop("__dynamo_disable", None)  # the next call asks the compiler
        self._left_alone.clear()
        return importlib.import_module(self.__name__)

    def __getattr__(self, name):
        if name.startswith("__") and name != "__path__":  # Python asks every module for these
            raise AttributeError(name)
        return getattr(self.real(), name)


sys.modules["torch._dynamo"] = Later()
atexit.register(gc.freeze)
