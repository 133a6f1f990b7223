"""From a source, as users write it, to the model: registry names, factories, files.

    multi-head                        a name of the registry, also `registry:multi-head{d_model=256}`
    torch.nn:TransformerEncoderLayer  any callable that can be imported, as `package.module:factory`
    my_model.py:make                  a callable in a file, as `path.py:factory`

A factory is called with the sizes as keywords. It returns a ModelSpec, an `nn.Module`,
(module, args) or (module, args, dynamic_shapes); any `nn.Module` class is one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor, nn

from attnport.axes import Axis, AxisSum, axes_by_name, with_sums
from attnport.errors import ModuleError, UsageError
from attnport.models import examples
from attnport.models.factories import Factory, load_factory
from attnport.models.inputs import (
    dynamic_shapes_of,
    example_args,
    parse_input,
    roles_of,
)
from attnport.models.literals import parse_value, split_braces, with_braces
from attnport.models.registry import resolve
from attnport.models.signatures import check_inputs_fit_forward
from attnport.models.spec import DynamicShapes, ModelSpec


def spec_from_source(
    text: str,
    sizes: Mapping[str, str] | None = None,
    inputs: Sequence[str] = (),
    axes: Sequence[Axis | AxisSum] = (),
) -> ModelSpec:
    """Gives the model that a source means.

    Args:
        text: A registry name, `registry:NAME{a=1}`, `package.module:factory` or `path.py:factory`.
        sizes: Keywords for the model, as text; together with those in braces.
        inputs: For a factory that returns a bare module: its arguments in forward's order, as
            `NAME:DTYPE[dim,dim,…]`, where a dimension is a number or the name of an axis.
        axes: The range of each axis, or what it is the sum of; for a model that has its own they
            replace those.

    Returns:
        The model, whose source makes the same module again.

    Raises:
        UsageError: If there is no such model, or sizes, inputs or axes do not fit it.
        ModuleError: If the factory raises or does not return a module.
    """
    head, values = _head_and_sizes(text, sizes or {})
    registry_name = _registry_name(head)
    if registry_name is not None:
        spec = resolve(registry_name, values)
        return _with_axes(_without_inputs(spec, inputs), axes)
    factory = load_factory(head)
    made = factory(values)
    if isinstance(made, ModelSpec):
        own = replace(made, source=with_braces(factory.source, values))
        return _with_axes(_without_inputs(own, inputs), axes)
    return _spec_of_factory(factory, values, made, inputs, axes_by_name(axes))


def module_from_source(source: str) -> nn.Module:
    """Makes the module of `ModelSpec.source` again, in evaluation mode.

    Raises:
        UsageError: If the source no longer means anything here.
        ModuleError: If the factory raises or does not return a module.
    """
    head, values = split_braces(source)
    registry_name = _registry_name(head)
    if registry_name is not None:
        return resolve(registry_name, values).make()
    factory = load_factory(head)
    return _module_of(factory, factory(values)).eval()


def _registry_name(head: str) -> str | None:
    if head.startswith("registry:"):
        return head.removeprefix("registry:")
    if ":" in head or head.endswith(".py"):
        return None
    return head


def _head_and_sizes(text: str, sizes: Mapping[str, str]) -> tuple[str, dict[str, object]]:
    head, values = split_braces(text)
    twice = sorted(set(values) & set(sizes))
    if twice:
        raise UsageError(
            f"{', '.join(twice)} is given in the braces of {text!r} and beside it: give it once"
        )
    return head, {**values, **{name: parse_value(value) for name, value in sizes.items()}}


def _without_inputs(spec: ModelSpec, inputs: Sequence[str]) -> ModelSpec:
    if inputs:
        raise UsageError(
            f"{spec.source} has its own inputs: leave out --input {inputs[0]!r}, "
            "which is for modules that come without"
        )
    return spec


def _with_axes(spec: ModelSpec, axes: Sequence[Axis | AxisSum]) -> ModelSpec:
    ranges = []
    for axis in axes:
        own = spec.axes.get(axis.name)
        if own is None:
            has = f"it has {', '.join(spec.axes)}" if spec.axes else "all its sizes are fixed"
            raise UsageError(f"{spec.source} has no axis {axis.name!r}: {has}")
        if own.terms or isinstance(axis, AxisSum):
            what = f"has {own.rule}" if own.terms else f"has {own.name} as a range, not as a sum"
            raise UsageError(f"{spec.source} {what}: give ranges to the axes that have one")
        ranges.append(axis)
    return replace(spec, axes=with_sums({**spec.axes, **axes_by_name(ranges)}))


def _module_of(factory: Factory, made: object) -> nn.Module:
    if isinstance(made, ModelSpec):
        return made.make()
    module = made[0] if isinstance(made, tuple) and made else made
    if not isinstance(module, nn.Module):
        raise ModuleError(
            f"{factory.source} returned {type(module).__name__}, not a module: return an "
            "nn.Module, (module, args), (module, args, dynamic_shapes) or a ModelSpec"
        )
    return module


def _spec_of_factory(
    factory: Factory,
    values: Mapping[str, object],
    made: object,
    inputs: Sequence[str],
    axes: Mapping[str, Axis],
) -> ModelSpec:
    module = _module_of(factory, made)
    specs = tuple(parse_input(text) for text in inputs)
    make_args: Callable[[Mapping[str, int]], tuple[Tensor, ...]]
    if isinstance(made, tuple):
        args, dynamic_shapes = _given_args(factory.source, made)
        make_args = partial(examples.resized_args, args, dynamic_shapes)
    else:
        check_inputs_fit_forward(module, specs, factory.source)
        dynamic_shapes = dynamic_shapes_of(specs)
        make_args = partial(example_args, specs)
    spec = ModelSpec(
        name=factory.name,
        source=with_braces(factory.source, values),
        make=lambda: _module_of(factory, factory(values)).eval(),
        make_args=make_args,
        dynamic_shapes=dynamic_shapes,
        axes=_axes_of(factory.source, dynamic_shapes, axes),
        roles=roles_of(specs),
        summary=f"{type(module).__name__} from {factory.source}",
    )
    return _without_inputs(spec, inputs) if isinstance(made, tuple) else spec


def _given_args(source: str, made: tuple[object, ...]) -> tuple[tuple[Tensor, ...], DynamicShapes]:
    if len(made) not in (2, 3):
        raise ModuleError(
            f"{source} returned a tuple of {len(made)}: "
            "return (module, args) or (module, args, dynamic_shapes)"
        )
    args = examples.checked_args(made[1], source)
    if len(made) == 2:
        return args, (None,) * len(args)
    return args, examples.checked_dynamic_shapes(made[2], args, source)


def _axes_of(
    source: str, dynamic_shapes: DynamicShapes, axes: Mapping[str, Axis]
) -> dict[str, Axis]:
    used = {axis: None for shape in dynamic_shapes for axis in (shape or {}).values()}
    used |= {t: None for axis in axes.values() for t in axis.terms if isinstance(t, str)}
    missing = [name for name in used if name not in axes]
    if missing:
        options = " ".join(f"--axis {name}={_ranges(name)}" for name in missing)
        raise UsageError(
            f"{source} has no range for {', '.join(missing)}: add {options}, "
            "with the smallest, usual and largest size that it is for"
        )
    unused = [name for name in axes if name not in used]
    if unused:
        raise UsageError(
            f"no input of {source} has the axis {', '.join(unused)}: leave out its --axis, "
            f"or name it in an input's dimensions (they name {', '.join(used) or 'none'})"
        )
    return {name: axes[name] for name in used}


def _ranges(name: str) -> str:
    """An example that suits the name."""
    return "1:2:8" if "batch" in name else "1:128:512"
