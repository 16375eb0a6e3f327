"""The rival's side: the same work in PyTorch, transformers and datasets at their fastest.

A training step has the same model, batch and predictions, with fused AdamW, scaled-dot-product attention and gradient
clipping, eager or through torch.compile, and with autocast unless the workload is float32. Batches are masked already. As in
transformers' own training, logits are computed at all positions, except by the side "gathered".
"""

import contextlib
import importlib.metadata
import itertools
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import transformers
from torch import nn
from torch.nn import functional

from bertlab.bench.workloads import LEARNING_RATE, SEEDS, Runner, Workload
from bertlab.errors import UserError
from bertlab.objectives import find

SHAPE = {
    "vocab_size": "vocab_size",
    "width": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "hidden": "intermediate_size",
}
"""Our names of a BERT's sizes, and transformers'."""


class TrainingSteps(Runner):
    """Training steps on given batches."""

    def __init__(self, workload: Workload, given: str, side: str):
        """Builds the model and runs the first step, which compiles it; `facts` holds that step's time.

        Args: given: the directory that `ours.write_examples` filled.
        """
        super().__init__()
        if workload.cores:
            torch.set_num_threads(workload.cores)
        self.device = "cuda" if workload.made_up and torch.cuda.is_available() else "cpu"
        if self.device == "cuda":  # as JAX multiplies float32 there
            torch.set_float32_matmul_precision("high")
        facts = json.loads(Path(given, "model.json").read_text())
        with np.load(Path(given, "rows.npz")) as saved:
            arrays = {name: torch.from_numpy(saved[name].astype(np.int64)).to(self.device) for name in saved.files}
        self.tokens = [int(x.count_nonzero()) for x in arrays["documents"]]
        self.positions = arrays["documents"][0].numel()
        torch.manual_seed(0)
        family = workload.recipe.partition(".")[0]
        of_bert = causal_bert if "masked_positions" not in arrays else gathered_bert if side == "gathered" else bert
        builders = {"bert": of_bert, "gpt": gpt, "awd_lstm": awd_lstm, "elmo": elmo}
        self.model, loss, batches = builders[family](workload.config(), facts, arrays)
        self.model.to(self.device).train()
        self.batches, self.next = batches, itertools.cycle(range(len(self.tokens)))
        self.loss = loss if side == "eager" else torch.compile(loss)
        config = workload.config().optimizer
        if config.name == "adam":
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
        else:
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, weight_decay=config.weight_decay, fused=True)
        self.clip = config.clip_norm
        bf16 = lambda: torch.autocast(self.device, torch.bfloat16)
        self.precision = bf16 if workload.dtype == "bfloat16" else contextlib.nullcontext
        began = time.perf_counter()
        self._step(0)
        self.facts = {"compile_seconds": time.perf_counter() - began}

    def _step(self, index: int) -> None:
        with self.precision():
            loss = self.loss({name: x[index] for name, x in self.batches.items()})
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.clip, foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.last = loss

    def round(self, steps: int) -> dict[str, float]:
        tokens = 0
        for index in itertools.islice(self.next, steps):
            self._step(index)
            tokens += self.tokens[index]
        if not np.isfinite(self.last.item()):  # waits for the device
            raise UserError(f"the rival's loss is {self.last.item()}, so its speed is meaningless")
        return {"tokens": tokens, "positions": steps * self.positions}


def bert_config(facts: dict, **more) -> transformers.BertConfig:
    """Our BERT's sizes and dropout as transformers names them."""
    sizes = {theirs: facts[name] for name, theirs in SHAPE.items()}
    dropouts = {name: facts["dropout"] for name in ("hidden_dropout_prob", "attention_probs_dropout_prob")}
    return transformers.BertConfig(**sizes, **dropouts, hidden_act="gelu_pytorch_tanh", attn_implementation="sdpa", **more)


def inputs(arrays: dict) -> dict:
    """What every BERT reads; rows without padding need no mask."""
    inside = arrays["documents"] > 0
    mask = {} if inside.all() else {"attention_mask": inside.long()}
    return {"input_ids": arrays["tokens"], "token_type_ids": arrays["segments"], **mask}


def bert(config, facts: dict, arrays: dict):
    """transformers' BertForPreTraining, or without NSP its BertForMaskedLM: model, loss of a batch, batches."""
    pairs = any(find(name).asks == "pairs" for name in config.objectives)
    model = (transformers.BertForPreTraining if pairs else transformers.BertForMaskedLM)(bert_config(facts))
    labels = torch.full_like(arrays["tokens"], -100)
    used = arrays["masked_weights"] > 0
    values = torch.where(used, arrays["masked_labels"], -100)
    # Unused slots all stand at position 0, which is never masked ([CLS]).
    labels.scatter_(2, torch.where(used, arrays["masked_positions"], 0), values)
    batches = inputs(arrays) | {"labels": labels}
    batches |= {"next_sentence_label": arrays["pair_label"]} if pairs else {}
    return model, lambda batch: model(**batch).loss, batches


def gathered_bert(config, facts: dict, arrays: dict):
    """`bert` with logits at the masked positions only; transformers' model does not offer this."""
    model, _, batches = bert(config, facts, arrays)
    labels = torch.where(arrays["masked_weights"] > 0, arrays["masked_labels"], -100)
    batches |= {"labels": labels, "masked_positions": arrays["masked_positions"]}

    def loss(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        shown = model.bert(batch["input_ids"], batch.get("attention_mask"), batch["token_type_ids"])
        hidden = shown.last_hidden_state
        places = batch["masked_positions"][..., None].expand(-1, -1, hidden.shape[-1])
        logits = model.cls.predictions(hidden.gather(1, places))
        of_words = functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=-100)
        if "next_sentence_label" not in batch:
            return of_words
        of_pairs = model.cls.seq_relationship(shown.pooler_output)
        return of_words + functional.cross_entropy(of_pairs, batch["next_sentence_label"].flatten())

    return model, loss, batches


def causal_bert(config, facts: dict, arrays: dict):
    """transformers' BertLMHeadModel, which sees what is before and predicts at every position."""
    model = transformers.BertLMHeadModel(bert_config(facts, is_decoder=True, use_cache=False))
    documents = arrays["documents"]
    labels = torch.where(documents > 0, arrays["tokens"], -100)
    labels[..., 0] = -100  # each is predicted at the position before
    labels[..., 1:][documents[..., 1:] != documents[..., :-1]] = -100
    batches = inputs(arrays) | {"labels": labels}
    return model, lambda batch: model(**batch).loss, batches


def gpt(config, facts: dict, arrays: dict):
    """transformers' GPT2LMHeadModel."""
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=facts["vocab_size"],
            n_positions=arrays["tokens"].shape[-1],
            n_embd=facts["width"],
            n_layer=facts["layers"],
            n_head=facts["heads"],
            attn_implementation="sdpa",
        )
    )
    batches = {"input_ids": arrays["tokens"], "labels": torch.where(arrays["documents"] > 0, arrays["tokens"], -100)}
    return model, lambda batch: model(**batch).loss, batches


class AwdLstm(nn.Module):
    """AWD-LSTM with torch's LSTMs: weight drop, locked and embedding dropout, tied output, activation penalties."""

    def __init__(self, config, facts: dict):
        super().__init__()
        self.rates = {name: facts[name] for name in facts if name.endswith("dropout")}
        cells = [facts["hidden"]] * (facts["layers"] - 1) + [facts["width"]]
        self.table = nn.Parameter(torch.empty(facts["vocab_size"], facts["width"]).uniform_(-0.1, 0.1))
        self.bias = nn.Parameter(torch.zeros(facts["vocab_size"]))
        self.layers = nn.ModuleList(nn.LSTM(i, o) for i, o in zip([facts["width"], *cells], cells))

    def locked(self, x: torch.Tensor, rate: float) -> torch.Tensor:
        """One mask for all positions of a row."""
        return x * functional.dropout(torch.ones_like(x[:1]), rate, self.training)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Mean cross-entropy of the next tokens, with both penalties."""
        tokens, labels = batch["tokens"].T, batch["labels"].T
        kept = functional.dropout(torch.ones_like(self.bias), self.rates["embedding_dropout"], self.training)
        x = functional.embedding(tokens, self.table) * kept[tokens][..., None]
        x = self.locked(x, self.rates["input_dropout"])
        for i, layer in enumerate(self.layers):
            x = self.locked(x, self.rates["hidden_dropout"]) if i else x
            weights = dict(layer.named_parameters())
            dropped = functional.dropout(weights["weight_hh_l0"], self.rates["weight_dropout"], self.training)
            x, _ = torch.func.functional_call(layer, {**weights, "weight_hh_l0": dropped}, (x,))
        shown = self.locked(x, self.rates["dropout"])
        logits = functional.linear(shown, self.table, self.bias)
        penalties = 2 * shown.pow(2).mean() + (x[1:] - x[:-1]).pow(2).mean()
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100) + penalties


def awd_lstm(config, facts: dict, arrays: dict):
    """salesforce/awd-lstm-lm's model on today's torch."""
    model = AwdLstm(config, facts)
    labels = torch.where(arrays["next_tokens"] >= 0, arrays["next_tokens"], -100)
    return model, model, {"tokens": arrays["tokens"], "labels": labels}


class Elmo(nn.Module):
    """ELMo's two stacks of projected LSTMs over token embeddings, one softmax for both (nothing is clipped: torch cannot)."""

    def __init__(self, config, facts: dict):
        super().__init__()
        self.dropout = facts["dropout"]
        self.embedding = nn.Embedding(facts["vocab_size"], facts["width"])
        self.output = nn.Linear(facts["width"], facts["vocab_size"])
        lstm = lambda: nn.LSTM(facts["width"], facts["hidden"], proj_size=facts["width"])
        self.stacks = nn.ModuleList(nn.ModuleList(lstm() for _ in range(facts["layers"])) for _ in range(2))

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Sum of both directions' mean cross-entropies."""
        embedded, total = self.embedding(batch["tokens"].T), 0.0
        for reverse, stack in enumerate(self.stacks):
            x = embedded.flip(0) if reverse else embedded
            for i, layer in enumerate(stack):
                dropped = functional.dropout(x, self.dropout, self.training)
                x = layer(dropped)[0] + (dropped if i else 0)
            x = functional.dropout(x.flip(0) if reverse else x, self.dropout, self.training)
            labels = batch["previous" if reverse else "next"].T
            logits = self.output(x)
            total = total + functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
        return total


def elmo(config, facts: dict, arrays: dict):
    """ELMo on ids, whole rows; states begin at zero with a row."""
    model = Elmo(config, facts)
    tokens, inside = arrays["tokens"], arrays["documents"] > 0
    same = arrays["documents"][..., 1:] == arrays["documents"][..., :-1]
    following, before = torch.full_like(tokens, -100), torch.full_like(tokens, -100)
    following[..., :-1] = torch.where(same & inside[..., 1:], tokens[..., 1:], -100)
    before[..., 1:] = torch.where(same & inside[..., 1:], tokens[..., :-1], -100)
    return model, model, {"tokens": tokens, "next": following, "previous": before}


class Preparation(Runner):
    """run_mlm.py's way: `datasets.map` with a fast tokenizer, then the tokens of all texts in rows of one length."""

    def __init__(self, workload: Workload, given: str, side: str):
        """Args: given: the directory that `ours.write_text` filled."""
        super().__init__()
        data = workload.config().data
        self.text, self.workers, self.length = f"{given}/text.jsonl", data.workers, data.seq_len
        self.tokenizer = transformers.BertTokenizerFast(vocab=f"{given}/tokenizer/vocab.txt")

    def round(self, steps: int) -> dict[str, float]:
        import datasets  # slow, and training steps start without it

        with tempfile.TemporaryDirectory() as directory:
            began = time.perf_counter()
            text = datasets.load_dataset("json", data_files=self.text, cache_dir=directory, split="train")
            tokens = text.map(self._tokens, batched=True, num_proc=self.workers, remove_columns=text.column_names)
            rows = tokens.map(self._rows, batched=True, num_proc=self.workers).with_format("torch")
            next(iter(torch.utils.data.DataLoader(rows, batch_size=32)))
            return {"seconds": time.perf_counter() - began}

    def _tokens(self, examples: dict) -> dict:
        # One text holds all sentences of a document, with line breaks between them.
        return self.tokenizer(examples["text"], return_special_tokens_mask=True)

    def _rows(self, examples: dict) -> dict:
        joined = {name: list(itertools.chain(*lists)) for name, lists in examples.items()}
        whole = len(next(iter(joined.values()))) // self.length * self.length
        return {name: [x[i : i + self.length] for i in range(0, whole, self.length)] for name, x in joined.items()}


class FineTunings(Runner):
    """Eight runs of transformers' Trainer, one after the other in one process; rows are padded to the longest of a batch."""

    def __init__(self, workload: Workload, given: str, side: str):
        """Args: given: the directory that `ours.write_task` filled."""
        super().__init__()
        self.given, self.compile = Path(given), side == "compiled"
        facts = json.loads((self.given / "model.json").read_text())
        self.shape = {theirs: facts[name] for name, theirs in SHAPE.items()}
        self.tokenizer = transformers.BertTokenizerFast(vocab=f"{given}/run/tokenizer/vocab.txt")

    def round(self, steps: int) -> dict[str, float]:
        import datasets  # slow, and training steps start without it

        with tempfile.TemporaryDirectory() as directory:
            began = time.perf_counter()
            files = {split: str(self.given / f"{split}.tsv") for split in ("train", "valid", "test")}
            data = datasets.load_dataset("csv", data_files=files, delimiter="\t", quoting=3, cache_dir=directory)
            data = data.map(lambda x: self.tokenizer(x["sentence"], truncation=True, max_length=128), batched=True)
            scores = [self._one(seed, data, directory) for seed in range(1, SEEDS + 1)]
            return {"seconds": time.perf_counter() - began, "score": sum(scores) / SEEDS}

    def _one(self, seed: int, data, directory: str) -> float:
        transformers.set_seed(seed)
        config = transformers.BertConfig(num_labels=2, **self.shape)
        arguments = transformers.TrainingArguments(
            output_dir=f"{directory}/{seed}",
            seed=seed,
            per_device_train_batch_size=32,
            per_device_eval_batch_size=32,
            num_train_epochs=3,
            learning_rate=LEARNING_RATE,
            warmup_steps=0.1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            torch_compile=self.compile,
        )
        trainer = transformers.Trainer(
            transformers.BertForSequenceClassification(config),
            arguments,
            train_dataset=data["train"],
            processing_class=self.tokenizer,
            compute_metrics=lambda found: {"accuracy": float((found.predictions.argmax(-1) == found.label_ids).mean())},
        )
        trainer.train()
        trainer.evaluate(data["valid"])
        return trainer.evaluate(data["test"])["eval_accuracy"]


def environment() -> dict:
    """Versions and threads."""
    libraries = ("torch", "transformers", "datasets", "tokenizers")
    return {**{name: importlib.metadata.version(name) for name in libraries}, "threads": torch.get_num_threads()}


def peak_device_bytes() -> int:
    """Peak memory of the GPU in bytes; 0 on a CPU."""
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0


def ceiling(dtype: str) -> float:
    """FLOP/s of a large matrix product, the best of several."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    size = 8192 if device == "cuda" else 2048
    matrix = torch.randn(size, size, device=device, dtype=getattr(torch, dtype))
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    seconds = []
    for _ in range(10):
        wait()
        began = time.perf_counter()
        matrix @ matrix
        wait()
        seconds.append(time.perf_counter() - began)
    return 2 * size**3 / min(seconds)


# Of replicas, it trains one after the other.
RUNNERS = {kind: TrainingSteps for kind in ("step", "replicas", "start")}
RUNNERS |= {"prepare": Preparation, "finetune": FineTunings}
