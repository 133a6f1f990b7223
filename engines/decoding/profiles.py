"""The two optimization profiles of a decoding plan: any number of new tokens, and exactly one.

With a single profile from one token on TensorRT takes its kernel for many queries in every step; the
profile of one query has a kernel of its own (`_gemv_mha…`, TensorRT for RTX 1.7.1).
"""

from __future__ import annotations

from attnport.engines.build_options import BuildOptions
from attnport.engines.decoding.layout import layout_of
from attnport.export.bundle import Bundle


def with_decoding_profiles(bundle: Bundle, options: BuildOptions) -> BuildOptions:
    """The options, with both profiles where the bundle has caches and none were asked for.

    Args:
        bundle: The exported model.
        options: What was asked of the build.
    """
    if not bundle.manifest.caches or options.profiles:
        return options
    dim = layout_of(bundle).tokens.shape[1]
    if isinstance(dim, int):
        return options
    axis = bundle.axes[dim]
    if axis.min > 1 or axis.max == 1:
        return options
    return options.model_copy(update={"profiles": ({}, {dim: (1, 1, 1)})})
