"""Lets the workers of the tests start without torch's compiler, which they do not use.

torch loads parts of it that take more than half of the processor time in which a worker starts and
takes its first step, and the tests start hundreds of workers:

- `torch._dynamo`, when the first optimizer is made (torch/_compile.py, torch/optim/optimizer.py),
  only to tell it what not to compile: the stand-in takes note of that;
- `torch.fx.experimental.symbolic_shapes`, at the first `backward(gradient)` (torch/autograd), only
  to compare two shapes: those of the tests are numbers;
- `torch._meta_registrations`, when torch itself is imported: the shapes of results without the
  results. On the way a `torch.Generator` gets its metaclass (torch/_prims/rng_prims.py).

Whatever else is asked of one of them loads the real one, and for the compiler all of them.

At the end of a process all that torch has loaded is not searched for cycles once more.

Python imports `sitecustomize` at each start; tests/conftest.py puts this folder on the path.
"""

import atexit
import gc
import importlib
import operator
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

COMPILER = "torch._dynamo"
SHAPES = "torch.fx.experimental.symbolic_shapes"
RESULTS = "torch._meta_registrations"


class Later(ModuleType):
    """Is a module of torch's until something is asked of it that only the real one has."""

    def real(self):
        """The module itself, from now on for all."""
        if sys.modules[self.__name__] is self:
            del sys.modules[self.__name__]
        return importlib.import_module(self.__name__)

    def __getattr__(self, name):
        if name.startswith("__"):  # Python asks every module for these
            raise AttributeError(name)
        return getattr(self.real(), name)


class Compiler(Later):
    """Is `torch._dynamo` until somebody compiles."""

    def __init__(self):
        super().__init__(COMPILER)
        self._left_alone = []

    @property
    def __path__(self):
        return self.real().__path__  # a module in it is imported

    def graph_break(self):
        """Outside a compilation the real one does nothing either."""

    def disable(self, function=None, *arguments, **options):
        """What is not to be compiled is as it is, as long as nothing is compiled."""
        if options != {"wrapping": False}:  # not from torch/_compile.py
            return self.real().disable(function, *arguments, **options)
        self._left_alone.append(function)
        return function

    def real(self):
        """The compiler itself, which needs the others too."""
        for function in self._left_alone:
            vars(function).pop("__dynamo_disable", None)  # the next call asks the compiler
        self._left_alone.clear()
        for name in (SHAPES, RESULTS):
            if isinstance(module := sys.modules.get(name), Later):
                module.real()
        return super().real()


class Shapes(Later):
    """Is `torch.fx.experimental.symbolic_shapes` where shapes are numbers."""

    expect_true = staticmethod(bool)
    sym_eq = staticmethod(operator.eq)


class ResultsFinder:
    """Finds the stand-in of `torch._meta_registrations`, once, when torch itself imports it."""

    def find_spec(self, name, *_):
        """Python asks for every module."""
        return ModuleSpec(name, self) if name == RESULTS else None

    def create_module(self, spec):
        """Whoever asks again wants the real one."""
        sys.meta_path.remove(self)
        return Later(spec.name)

    def exec_module(self, _):
        """Do what else happens here."""
        import torch  # noqa: PLC0415 - which is importing this
        from torch._opaque_base import OpaqueBaseMeta  # noqa: PLC0415

        torch._C._set_generator_metaclass(OpaqueBaseMeta)


sys.modules |= {COMPILER: Compiler(), SHAPES: Shapes(SHAPES)}
sys.meta_path.insert(0, ResultsFinder())
atexit.register(gc.freeze)
