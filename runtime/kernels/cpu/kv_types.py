"""The cache types by name, as the kernels' names end."""

from .kv_float import F16_TYPE, F32_TYPE
from .kv_q8_0 import Q8_0_TYPE
from .kv_type import KvType

KV_TYPES: dict[str, KvType] = {"f16": F16_TYPE, "f32": F32_TYPE, "q8_0": Q8_0_TYPE}
