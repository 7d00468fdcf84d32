"""What MLflow runs when it loads a model of textmill: this file is copied into the model.

Code and safetensors, no pickle. Loading needs an installed textmill and no network. Text is made by
the functions of `textmill generate`: for equal settings it is equal. Rows: `prompt` → `text`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mlflow.models import set_model
from mlflow.pyfunc import PythonModel


class TextModel(PythonModel):  # type: ignore[misc]
    """Continues prompts."""

    # MLflow's own check of types takes hints of lists only, and warns of all others.
    _skip_type_hint_validation = True

    def load_context(self, context: Any) -> None:
        from textmill.start import use

        use()
        from llm_core.huggingface.export import load_model
        from tasks.evaluation.generate import eos_ids
        from tasks.tokenizer.encoder import load_tokenizer

        # Models beyond `tracking.max_model_bytes` stay in the store.
        folder = Path(context.artifacts.get("model") or context.model_config["folder"])
        self._model, self._tokenizer = load_model(folder), load_tokenizer(folder)
        self._ends = eos_ids(folder, self._model, self._tokenizer)

    def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]
        """The texts that follow the prompts of a table."""
        from llm_core.device import choose_device
        from llm_core.infer.choice.sampling import SamplingParams
        from tasks.evaluation.generate import generate_texts

        given = dict(params)  # with the defaults of the signature
        device, most = given.pop("device"), given.pop("max_new_tokens")
        model, sampling = self._model.to(choose_device(device)), SamplingParams(**given)
        ids = [self._tokenizer.encode(prompt).tolist() for prompt in model_input["prompt"]]
        # One by one: the random stream of a prompt depends on its number.
        about = sampling, most, self._ends
        return [generate_texts(model, self._tokenizer, [one], *about)[0].text for one in ids]


set_model(TextModel())
