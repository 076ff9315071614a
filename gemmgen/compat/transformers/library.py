"""The modules of transformers that this package stands on."""

from __future__ import annotations

from ..needed import needed

REQUIREMENT = "transformers>=5.24"  # what was tested; 5.20 calls a quantiser otherwise
quantizers = needed("transformers.quantizers", REQUIREMENT)
auto = needed("transformers.quantizers.auto", REQUIREMENT)
names = needed("transformers.quantizers.quantizers_utils", REQUIREMENT)
configs = needed("transformers.utils.quantization_config", REQUIREMENT)
loading = needed("transformers.core_model_loading", REQUIREMENT)
