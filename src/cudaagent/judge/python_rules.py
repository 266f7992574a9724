"""The vocabulary of ``model_new.py``: what may be imported, read, called and assigned.

Tables only; ``python_check`` applies them. Everything that is not named here is refused.
"""

from __future__ import annotations

import collections.abc
import typing


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


EXTENSION = "cuda_extension"

BUILTINS = _words(
    "abs all any bool bytes callable chr classmethod complex dict divmod enumerate filter float "
    "format frozenset hash int isinstance issubclass iter len list map max min next object ord "
    "pow print property range repr reversed round set slice sorted staticmethod str sum super "
    "tuple type zip Ellipsis NotImplemented ArithmeticError AssertionError AttributeError "
    "DeprecationWarning Exception FloatingPointError FutureWarning ImportError IndexError "
    "KeyError LookupError MemoryError ModuleNotFoundError NotImplementedError OverflowError "
    "RuntimeError RuntimeWarning StopIteration TypeError UserWarning ValueError Warning "
    "ZeroDivisionError"
)
NUMBER_BUILTINS = _words(
    "len int float bool hash isinstance issubclass callable ord all any complex"
)
COMPUTING_BUILTINS = _words("abs divmod max min pow round sorted sum")
"""These compute with torch when they are given a tensor."""
READING_BUILTINS = _words("float int bool complex all any")
"""These copy a tensor's value to Python."""

MODULES: dict[str, frozenset[str] | None] = {
    "__future__": _words("annotations"),
    "abc": _words("ABC ABCMeta abstractmethod"),
    "collections": _words("ChainMap Counter OrderedDict abc defaultdict deque namedtuple"),
    "collections.abc": frozenset(collections.abc.__all__),
    "dataclasses": _words("KW_ONLY asdict astuple dataclass field fields is_dataclass replace"),
    "enum": _words("Enum EnumMeta Flag IntEnum IntFlag StrEnum auto unique"),
    "functools": _words(
        "cache cached_property lru_cache partial partialmethod reduce total_ordering wraps"
    ),
    "itertools": None,
    "logging": _words(
        "CRITICAL DEBUG ERROR INFO Logger NOTSET NullHandler WARNING critical debug error "
        "exception getLogger info warning"
    ),
    "math": None,
    "torch": None,
    "torch.nn": None,
    "torch.nn.functional": None,
    "torch.nn.init": None,
    "typing": frozenset(typing.__all__) - _words("ForwardRef get_type_hints"),
    "warnings": _words("catch_warnings filterwarnings simplefilter warn"),
}
"""Importable modules and their names; None: every public name (torch has tables of its own)."""
DTYPES = _words(
    "bfloat16 bool cdouble cfloat complex128 complex64 double dtype float float16 float32 float64 "
    "float8_e4m3fn float8_e5m2 half int int16 int32 int64 int8 long short uint16 uint32 uint64 "
    "uint8"
)
TORCH_OTHER = DTYPES | _words(
    "Size Tensor channels_last channels_last_3d contiguous_format device e finfo "
    "get_default_dtype iinfo inf is_grad_enabled is_tensor layout memory_format nan no_grad pi "
    "preserve_format strided broadcast_shapes"
)
TORCH_ALLOCATION = _words(
    "empty empty_like empty_permuted empty_strided full full_like ones ones_like zeros zeros_like"
)
TORCH_INITIAL = _words(
    "arange eye linspace logspace normal rand rand_like randint randn randn_like randperm tensor "
    "tril triu as_tensor"
)
"""Initial values in ``__init__``; the judge overwrites them."""
VIEWS = _words(
    "as_strided broadcast_to chunk contiguous detach diagonal expand expand_as flatten moveaxis "
    "movedim narrow permute ravel requires_grad_ reshape reshape_as select split squeeze swapaxes "
    "swapdims t tensor_split transpose unbind unflatten unfold unsqueeze view view_as"
)
VIEW_LISTS = _words("chunk split tensor_split unbind")
TORCH_VIEWS = VIEWS - _words(
    "contiguous expand expand_as requires_grad_ reshape_as unfold view view_as"
)
TENSOR_NUMBERS = _words(
    "dim element_size get_device is_complex is_contiguous is_floating_point is_same_size nelement "
    "ndimension numel size storage_offset stride"
)
"""Methods that give numbers or shapes."""
TENSOR_ALLOCATION = _words("new_empty new_empty_strided new_full new_ones new_zeros")
TENSOR_FIELDS = _words(
    "device dtype is_cuda is_cpu itemsize layout nbytes ndim names requires_grad shape"
)
TENSOR_VIEW_FIELDS = _words("T mT")
TENSOR_READS = _words(
    "item tolist numpy data data_ptr grad storage untyped_storage register_hook backward set_ "
    "resize_ share_memory_ apply_ map_ grad_fn is_shared cpu cuda pin_memory"
)
"""Refused as `static-check`: they are no arithmetic, but reach for values, memory or autograd."""

TORCH_NOT_OPERATORS = _words(
    "autograd backends classes compile compiler cuda cpu distributed frombuffer from_dlpack "
    "from_file from_numpy fx hub inference_mode jit library load manual_seed multiprocessing "
    "nested_tensor onnx os overrides package profiler quantization random save seed "
    "set_default_device set_default_dtype set_deterministic_debug_mode "
    "set_float32_matmul_precision set_flush_denormal set_grad_enabled set_num_interop_threads "
    "set_num_threads set_printoptions sys utils vmap testing export func "
    "use_deterministic_algorithms Generator Storage"
)
"""Refused as `static-check`; every other refused name of torch counts as an operator."""

COMPUTING = _words(
    "abs abs_ acos add add_ addbmm addcdiv addcmul addmm addmv all allclose amax amin any argmax "
    "argmin argsort asin atan atan2 baddbmm bernoulli bfloat16 bitwise_and bmm bool bucketize "
    "ceil celu clamp clamp_ clamp_max clamp_min clip clone conv1d conv2d conv3d copy_ cos cosh "
    "cross cumprod cumsum diag diff div div_ dot double dropout einsum elu eq erf exp exp_ expm1 "
    "fill_ float floor fmod forward gather ge gelu group_norm gt half hardswish hardtanh "
    "index_add index_copy index_put_ index_select inner int interpolate isfinite isnan layer_norm "
    "le leaky_relu lerp linear log log10 log1p log2 log_softmax logical_and logsumexp long lt "
    "masked_fill masked_select matmul max mean median min mish mm mode mul mul_ multiply mv ne "
    "neg negative nonzero norm normal_ ones_ outer pad pow pow_ prod quantile reciprocal relu "
    "relu_ relu6 remainder renorm repeat repeat_interleave roll round rsqrt scatter scatter_ "
    "scatter_add selu sigmoid sigmoid_ sign silu sin sinh softmax softplus sort sqrt square std "
    "sub sub_ sum take tan tanh tanh_ threshold to topk trace tril triu trunc type uniform_ "
    "unique var where xlogy zero_ cdist cosine_similarity conv_transpose2d batch_norm "
    "instance_norm max_pool2d avg_pool2d scaled_dot_product_attention embedding kthvalue nansum "
    "bmm_ type_as hypot"
)
"""Names that mean arithmetic when they are read from something of unknown type."""

CONTAINER_METHODS = _words(
    "add append appendleft clear copy count difference discard extend extendleft fromkeys get "
    "index insert intersection isdisjoint issubset issuperset items keys most_common move_to_end "
    "pop popitem popleft remove reverse rotate setdefault sort symmetric_difference union update "
    "values"
)
TEXT_METHODS = _words(
    "capitalize casefold center count decode encode endswith find format hex index isalnum "
    "isalpha isdigit isidentifier islower isupper join ljust lower lstrip partition removeprefix "
    "removesuffix replace rfind rjust rpartition rsplit rstrip split splitlines startswith strip "
    "title upper zfill bit_length is_integer as_integer_ratio real imag conjugate"
)
OTHER_FIELDS = _words(
    "args bits cache_clear cache_info critical debug eps error exception fget index info "
    "is_complex is_floating_point isEnabledFor itemsize log max message min name numel resolution "
    "setLevel smallest_normal start step stop tiny type value warn warning with_traceback "
    "__name__ __doc__ __init__"
)
"""Attributes of strings, dtypes, loggers, exceptions, enum members and the like."""
UNKNOWN_FIELDS = (
    (CONTAINER_METHODS | TEXT_METHODS | OTHER_FIELDS | VIEWS | TENSOR_NUMBERS | TENSOR_ALLOCATION)
    | TENSOR_FIELDS
    | TENSOR_VIEW_FIELDS
) - (COMPUTING | _words("add __init__"))

LAYER_TENSORS = ("weight", "bias", "running_", "in_proj_", "num_batches_tracked")
"""Beginnings of the names of a layer's parameters and buffers."""
LAYER_FIELDS = _words(
    "affine alpha approximate batch_first beta bidirectional ceil_mode dilation dim "
    "elementwise_affine embed_dim embedding_dim eps groups head_dim hidden_size in_channels "
    "in_features inplace input_size kernel_size lambd lower max_val min_val momentum "
    "negative_slope normalized_shape num_channels num_embeddings num_features num_groups "
    "num_heads num_layers out_channels out_features out_proj output_padding output_size p padding "
    "padding_idx padding_mode stride threshold track_running_stats training upper upscale_factor"
)
LAYER_METHODS = _words(
    "append buffers eval extend items keys named_buffers named_parameters parameters "
    "register_buffer register_parameter requires_grad_ train values"
)
MODULE_RESERVED = _words(
    "_apply _backward_hooks _buffers _call_impl _compiled_call_impl _forward_hooks "
    "_forward_pre_hooks _is_full_backward_hook _load_from_state_dict _load_state_dict_post_hooks "
    "_load_state_dict_pre_hooks _modules _named_members _non_persistent_buffers_set _parameters "
    "_save_to_state_dict _slow_forward _state_dict_hooks _wrapped_call_impl add_module apply "
    "buffers call_super_init children compile cpu cuda double eval float get_buffer "
    "get_extra_state get_parameter get_submodule half load_state_dict modules named_buffers "
    "named_children named_modules named_parameters parameters register_buffer "
    "register_forward_hook register_forward_pre_hook register_load_state_dict_post_hook "
    "register_module register_parameter requires_grad_ set_extra_state share_memory state_dict to "
    "to_empty train training type xpu zero_grad"
)
"""Names of ``nn.Module`` that a solution may neither define nor assign."""

DUNDER_METHODS = _words(
    "__init__ __post_init__ __repr__ __str__ __len__ __eq__ __ne__ __hash__ __iter__ __next__ "
    "__getitem__ __setitem__ __contains__ __call__ __enter__ __exit__ __lt__ __le__ __gt__ __ge__ "
    "__bool__ __int__ __float__ __index__ __add__ __sub__ __mul__ __truediv__ __floordiv__ "
    "__mod__"
)
DUNDER_ASSIGNED = _words("__all__ __slots__ __version__ __author__ __constants__ __match_args__")
CLASS_BASES = _words(
    "object Exception ValueError RuntimeError TypeError KeyError tuple dict list str int"
)
