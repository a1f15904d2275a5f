"""Lets the processes of the tests start without what the libraries load and the tests do not use.

That takes more than half of the processor time in which a worker starts and takes its first step,
three quarters with lightning, and the tests start hundreds of workers:

- `torch._dynamo`, when the first optimizer is made (torch/_compile.py, torch/optim/optimizer.py),
  only to tell it what not to compile: the stand-in takes note of that;
- `torch.fx.experimental.symbolic_shapes`, at the first `backward(gradient)` (torch/autograd), only
  to compare two shapes: those of the tests are numbers;
- `torch._meta_registrations`, when torch itself is imported: the shapes of results without the
  results. On the way a `torch.Generator` gets its metaclass (torch/_prims/rng_prims.py);
- `OWN`, which torch itself imports to have their functions in its namespace, and the other modules
  by which these can be entered. They import each other in circles: who asks for one of them gets
  them all, in torch's order;
- `NAMED`, of which torch, transformers, accelerate, lightning and torchmetrics name classes
  and functions when they are imported, to ask what is an instance of them, for models that are not
  here, or to have them in a namespace.

Whatever else is asked of one of them loads the real one, and for the compiler all of torch's.

What torch has loaded stays until the end of a process: nobody searches it for cycles, neither while
it is imported, nor later, nor at the end.

Python imports `sitecustomize` at each start; tests/conftest.py puts this folder on the path.
"""

import atexit
import functools
import gc
import importlib
import operator
import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Union

COMPILER = "torch._dynamo"
SHAPES = "torch.fx.experimental.symbolic_shapes"
RESULTS = "torch._meta_registrations"
OWN = (
    "torch.export",
    "torch.func",
    "torch._higher_order_ops",
    "torch._higher_order_ops.invoke_subgraph",
    "torch._subclasses",
    "torch._functorch._aot_autograd",
    "torch._functorch.eager_transforms",
    "torch.fx.experimental.proxy_tensor",
    "torch.fx.passes",
    "torch.utils._debug_mode",
    "torch.utils.checkpoint",
)
NAMED = (
    "peft",
    "scipy.optimize",
    "scipy.signal",
    "torch._dynamo._trace_wrapped_higher_order_op",
    "torch.distributed._composable.fsdp",
    "torch.distributed.checkpoint",
    "torch.distributed.checkpoint.hf_storage",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.distributed.tensor._dtensor_spec",
    "torch.distributed.tensor._utils",
    "torch.distributed.tensor.placement_types",
    "torch.distributions",
    "torch.masked",
    "torch.nn.intrinsic",
    "torch.nn.qat",
    "torch.nn.quantizable",
    "torch.nn.quantized",
    "torch.quantization",
    "torch.utils.flop_counter",
    "torchgen.model",
    "torchmetrics.functional.text.bert",
    "torchmetrics.functional.text.infolm",
    "torchmetrics.text.bert",
    "torchmetrics.text.infolm",
    "torchmetrics.utilities.plot",
    "transformers.distributed.expert_parallel",
    "transformers.distributed.tensor_parallel",
)


class Later(ModuleType):
    """Is a module until something is asked of it that only the real one has."""

    def real(self):
        """The module itself, from now on for all, and so are those in it."""
        if self.__name__.startswith("torch."):
            load_own()
        if sys.modules.get(self.__name__) is self:
            inner = [name for name in NAMED if name.startswith(f"{self.__name__}.")]
            FINDER.left.difference_update(inner)
            for name in (self.__name__, *inner):
                if isinstance(sys.modules.get(name), Later):
                    del sys.modules[name]
        return importlib.import_module(self.__name__)

    def __getattr__(self, name):
        if name.startswith("__"):  # Python asks every module for these
            raise AttributeError(name)
        return getattr(self.real(), name)


def load_own():
    """All of OWN, if it is not loaded."""
    FINDER.left.difference_update(OWN)
    left = [name for name in OWN if isinstance(sys.modules.get(name), Later)]
    for name in left:
        del sys.modules[name]
    for name in left:
        importlib.import_module(name)


class Package(Later):
    """Is a module with others in it; if one of them has no stand-in, FINDER looks for it."""

    __path__ = ()


class Compiler(Package):
    """Is `torch._dynamo` until somebody compiles."""

    def __init__(self):
        super().__init__(COMPILER)
        self._left_alone = []
        self._told = []
        self.OptimizedModule = Name(self, "OptimizedModule")

    def graph_break(self):
        """Outside a compilation the real one does nothing either."""

    def disable(self, function=None, *arguments, **options):
        """What is not to be compiled is as it is, as long as nothing is compiled."""
        if function is None:
            return lambda function: self.disable(function, *arguments, **options)
        if options == {"wrapping": False}:  # from torch/_compile.py
            self._left_alone.append(function)
            return function

        @functools.wraps(function)
        def left_alone(*given, **named):
            if sys.modules.get(COMPILER) is self:
                return function(*given, **named)
            return self.real().disable(function, *arguments, **options)(*given, **named)

        return left_alone

    def allow_in_graph(self, function):
        """Told to the real one, if there will be one."""
        self._told.append(("allow_in_graph", function))
        return function

    def assume_constant_result(self, function):
        """Told to the real one, if there will be one."""
        self._told.append(("assume_constant_result", function))
        return function

    def real(self):
        """The compiler itself, which needs the others of torch too."""
        for function in self._left_alone:
            vars(function).pop("__dynamo_disable", None)  # the next call asks the compiler
        self._left_alone.clear()
        for name in (SHAPES, RESULTS, *NAMED):
            if name.startswith("torch.") and isinstance(module := sys.modules.get(name), Later):
                module.real()
        real = super().real()
        while self._told:
            what, function = self._told.pop()
            getattr(real, what)(function)
        return real


class Shapes(Later):
    """Is `torch.fx.experimental.symbolic_shapes` where shapes are numbers."""

    expect_true = staticmethod(bool)
    sym_eq = staticmethod(operator.eq)


class Name:
    """Is what a module calls by this name; the module is loaded when it is used.

    Asking what is an instance of it is no use: of a class that is not loaded there are none.
    """

    def __init__(self, module, name):
        self.__dict__ |= {"_module": module, "__name__": name, "__qualname__": name}

    def _is_loaded(self):
        return sys.modules.get(self._module.__name__) is not self._module

    def _real(self):
        return getattr(self._module.real(), self.__name__)

    def __instancecheck__(self, instance):
        return self._is_loaded() and isinstance(instance, self._real())

    def __subclasscheck__(self, one):
        return self._is_loaded() and issubclass(one, self._real())

    def __mro_entries__(self, _):
        return (self._real(),)

    def __call__(self, *arguments, **options):
        """Use it."""
        return self._real()(*arguments, **options)

    def __getattr__(self, name):
        if name.startswith("__"):  # annotations ask for these
            raise AttributeError(name)
        return getattr(self._real(), name)

    def __getitem__(self, key):
        return self._real()[key]

    def __or__(self, other):
        return Union[self, other]  # noqa: UP007 - `|` is this

    def __ror__(self, other):
        return Union[other, self]  # noqa: UP007


class Names(Package):
    """Is a module of which others name something that they may never use."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Name(self, name)


class Loaded:
    """Hands over a module that was asked for first, and that its package has loaded."""

    def __init__(self, module):
        self._module = module
        self._own_spec = module.__spec__
        self.spec = module.__spec__ = ModuleSpec(module.__name__, self)  # Python takes that one

    def create_module(self, _):
        """It is there."""
        return self._module

    def exec_module(self, module):
        """Nothing else is left to do."""
        module.__spec__ = self._own_spec


class Finder:
    """Finds the stand-ins."""

    def __init__(self):
        self.left = {RESULTS, *OWN, *NAMED}

    def find_spec(self, name, *_):
        """Python asks for every module."""
        if name == "torch":
            gc.disable()
        if name in self.left:
            return ModuleSpec(name, self)
        parent = sys.modules.get(name.rpartition(".")[0])
        if isinstance(parent, Package):
            found = parent.real()
            if name in sys.modules:
                return Loaded(sys.modules[name]).spec
            return PathFinder.find_spec(name, found.__path__)
        return None

    def create_module(self, spec):
        """A stand-in, once: whoever asks again wants the real one."""
        self.left.remove(spec.name)
        return (Later if spec.name == RESULTS else Names)(spec.name)

    def exec_module(self, module):
        """Do what else happens here, near the end of torch's own import."""
        if module.__name__ == RESULTS:
            import torch  # noqa: PLC0415 - which is importing this
            from torch._opaque_base import OpaqueBaseMeta  # noqa: PLC0415

            torch._C._set_generator_metaclass(OpaqueBaseMeta)
            importlib.import_module("torch._subclasses")  # without which no other module does
            gc.freeze()
            gc.enable()


FINDER = Finder()
sys.modules |= {COMPILER: Compiler(), SHAPES: Shapes(SHAPES)}
sys.meta_path.insert(0, FINDER)
atexit.register(gc.freeze)
