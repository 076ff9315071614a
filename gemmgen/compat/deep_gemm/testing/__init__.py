"""The names that DeepGEMM's programs import from `deep_gemm.testing`."""

from __future__ import annotations

from . import numeric as numeric
from . import utils as utils
from .bench import *  # noqa: F403
from .numeric import *  # noqa: F403
from .utils import *  # noqa: F403
