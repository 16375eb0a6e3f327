"""Bugs that the tests must notice: a text in a file, what replaces it, and the tests that are to fail."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Bug:
    """A bug to plant.

    Attributes:
        name: what the bug is, in a few words.
        file: the file to change.
        old: text that occurs exactly once in the file.
        new: what replaces it.
        tests: pytest's arguments for the tests that are expected to notice.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


LEAKS = "tests/contracts/test_leaks.py::test_one_sided_states_see_one_side_of_their_own_document[gpt-left-to-right-forward]"

BUGS = (
    Bug(
        "markup-in-the-data-of-a-page",
        "bertlab/studies/explore.html.j2",
        "{{ data | tojson }}",
        '{{ data | tojson | replace("\\\\u003c", "<" | safe) | safe }}',
        ("tests/studies/test_explore.py::test_nothing_in_a_study_can_break_out_of_the_data",),
    ),
    Bug(
        "interval-of-a-seed-instead-of-the-mean",
        "bertlab/studies/explore.py",
        "/ np.sqrt(np.where(known, seeds, np.nan))",
        "",
        ("tests/studies/test_explore.py::test_intervals_of_many_means_are_those_of_each",),
    ),
    Bug(
        "broken-causal-mask",
        "bertlab/models/transformer.py",
        "mask &= jnp.tril(jnp.ones((length, length), bool))",
        "mask &= jnp.ones((length, length), bool)",
        (LEAKS,),
    ),
    Bug(
        "document-mask-ignored",
        "bertlab/models/transformer.py",
        "mask = documents[:, :, None] == documents[:, None, :]",
        "mask = (documents[:, :, None] > 0) == (documents[:, None, :] > 0)",
        (LEAKS,),
    ),
    Bug(
        "off-by-one-labels",
        "bertlab/objectives/autoregressive.py",
        'step, edge = (-1, -1) if side == "forward" else (1, 0)',
        'step, edge = (-2, -1) if side == "forward" else (1, 0)',
        ("tests/objectives/test_autoregressive.py",),
    ),
    Bug(
        "labels-cross-documents",
        "bertlab/objectives/autoregressive.py",
        "same = (jnp.roll(documents, step, axis=1) == documents) & (documents > 0)",
        "same = (jnp.roll(documents, step, axis=1) > 0) & (documents > 0)",
        ("tests/objectives/test_autoregressive.py",),
    ),
    Bug(
        "loss-on-unmasked-positions",
        "bertlab/objectives/masked.py",
        'view["masked_labels"], view["masked_weights"])',
        'view["masked_labels"], jnp.ones_like(view["masked_weights"]))',
        ("tests/objectives/test_masked.py", "-k", "loss"),
    ),
    Bug(
        "wrong-shares-of-80-10-10",
        "bertlab/objectives/masked.py",
        "(fate < self.mask_share + self.random_share), drawn",
        "(fate < self.mask_share + 2 * self.random_share), drawn",
        ("tests/objectives/test_masked.py", "-k", "shares"),
    ),
    Bug(
        "sentence-label-flipped",
        "bertlab/objectives/next_sentence.py",
        "jnp.maximum(label, 0), label >= 0",
        "1 - jnp.maximum(label, 0), label >= 0",
        ("tests/objectives/test_next_sentence.py",),
    ),
    Bug(
        "sentence-label-flipped-in-data",
        "bertlab/data/formats/pairs.py",
        "label, used = int(is_negative), end",
        "label, used = int(not is_negative), end",
        ("tests/data/test_formats.py",),
    ),
    Bug(
        "norms-and-biases-decayed",
        "bertlab/train/optimizers.py",
        "[not (exclude and re.search(exclude, path)) for path in paths]",
        "[bool(exclude and re.search(exclude, path)) for path in paths]",
        ("tests/train/test_optimizers.py", "-k", "numpy"),
    ),
    Bug(
        "clipping-before-scaling",
        "bertlab/train/optimizers.py",
        """*([optax.scale(optimizer.gradient_scale)] if optimizer.gradient_scale != 1 else []),
        *([optax.clip_by_global_norm(optimizer.clip_norm)] if optimizer.clip_norm else []),""",
        """*([optax.clip_by_global_norm(optimizer.clip_norm)] if optimizer.clip_norm else []),
        *([optax.scale(optimizer.gradient_scale)] if optimizer.gradient_scale != 1 else []),""",
        ("tests/train/test_optimizers.py", "-k", "numpy and ELMo"),
    ),
    Bug(
        "warm-up-one-step-early",
        "bertlab/train/schedules.py",
        "rising = step / max(1, warmup)",
        "rising = (step + 1) / max(1, warmup)",
        ("tests/train/test_schedules.py",),
    ),
    Bug(
        "layer-decay-upside-down",
        "bertlab/train/layer_groups.py",
        "optimizer.layer_decay ** (len(names) - 1 - i)",
        "optimizer.layer_decay ** i",
        ("tests/train/test_layer_groups.py", "-k", "rates or movement"),
    ),
    Bug(
        "thawing-from-the-bottom",
        "bertlab/train/layer_groups.py",
        "only(*range(first, groups)) for first in reversed(range(1, groups))",
        "only(*range(groups - first)) for first in reversed(range(1, groups))",
        ("tests/train/test_layer_groups.py", "-k", "each_stage"),
    ),
    Bug(
        "dropped-micro-batch",
        "bertlab/train/state.py",
        "return jax.tree.map(jnp.add, total, (grads, metrics)), rest",
        "return (grads, metrics), rest",
        ("tests/train/test_sharding.py", "-k", "micro_batches and gpt"),
    ),
    Bug(
        "mean-of-means-over-micro-batches",
        "bertlab/train/state.py",
        "return weighted_total(metrics, now, denominators), (metrics, carry, statistics)",
        "return weighted_total(metrics, now) / micro_batches, (metrics, carry, statistics)",
        ("tests/train/test_sharding.py", "-k", "micro_batches and bert"),
    ),
    Bug(
        "mean-of-means-over-batches",
        "bertlab/train/metrics.py",
        """held[0] += float(total)
            held[1] += float(weight)""",
        """held[0] += float(total) / max(float(weight), 1e-9)
            held[1] += 1.0""",
        ("tests/train/test_metrics.py",),
    ),
    Bug(
        "same-randomness-at-every-step",
        "bertlab/train/state.py",
        "jax.random.fold_in(jax.random.key(seed), state.step)",
        "jax.random.fold_in(jax.random.key(seed), 0)",
        ("tests/objectives/test_sampled_softmax.py", "-k", "seed_and_step"),
    ),
    Bug(
        "dropout-in-evaluation",
        "bertlab/objectives/program.py",
        "views, True, carry, None, True)",
        'views, False, carry, None, True, rngs={"dropout": jax.random.key(0)})',
        ("tests/train/test_loop.py", "-k", "held_out"),
    ),
    Bug(
        "embeddings-not-tied",
        "bertlab/models/base.py",
        "if not self.config.tied:",
        "if True:",
        ("tests/objectives/test_autoregressive.py",),
    ),
    Bug(
        "stale-carry",
        "bertlab/models/recurrent.py",
        'continues = view["continues"] > 0',
        'continues = view["continues"] >= 0',
        ("tests/models/test_recurrent_bodies.py", "-k", "carried"),
    ),
    Bug(
        "stream-always-goes-on",
        "bertlab/data/formats/stream.py",
        "not first if self._across else self._offsets[lane] > 0",
        "not first",
        ("tests/data/test_streams.py",),
    ),
    Bug(
        "weight-dropout-on-the-wrong-matrix",
        "bertlab/models/awd_lstm.py",
        "wh = Dropout(c.weight_dropout)(wh, self.deterministic)",
        "wx = Dropout(c.weight_dropout)(wx, self.deterministic)",
        ("tests/models/test_awd_lstm.py", "-k", "weight_dropout"),
    ),
    Bug(
        "seed-does-not-shuffle",
        "bertlab/data/formats/row_format.py",
        "grain.MapDataset.source(self.source).seed(seed).shuffle()",
        "grain.MapDataset.source(self.source).seed(seed)",
        ("tests/data/test_batches.py", "-k", "another_seed or another_order"),
    ),
    Bug(
        "shards-read-the-same-documents",
        "bertlab/data/formats/row_format.py",
        "share = self._documents(data.seed)[index::count]",
        "share = self._documents(data.seed)[0::count]",
        ("tests/data/test_batches.py", "-k", "share"),
    ),
    Bug(
        "held-out-text-is-training-text",
        "bertlab/data/batches.py",
        "making = _open(prepared, data, split)",
        'making = _open(prepared, data, "train")',
        ("tests/data/test_batches.py", "-k", "eval_batches_read"),
    ),
    Bug(
        "data-position-lost-on-resume",
        "bertlab/train/loop.py",
        "self.iterator.set_state(position)",
        "pass",
        ("tests/train/test_resume.py", "-k", "resumes and gpt"),
    ),
    Bug(
        "optimizer-state-lost-on-resume",
        "bertlab/train/loop.py",
        "progress = Progress(**saved)",
        "progress, self.state = Progress(**saved), dataclasses.replace(self.state, opt_state=begin().opt_state)",
        ("tests/train/test_resume.py", "-k", "resumes and gpt"),
    ),
    Bug(
        "fine-tuning-starts-from-random-values",
        "bertlab/train/loop.py",
        "if experiment.warm_start is not None:",
        "if False:",
        ("tests/transfer/test_finetune.py", "-k", "pretrained_parameters"),
    ),
    Bug(
        "sums-added-once-a-device-too-often",
        "bertlab/objectives/linear_cross_entropy.py",
        "sums = jax.lax.psum(sums, BATCH_AXES)",
        "sums = jax.lax.psum(jax.lax.psum(sums, BATCH_AXES), BATCH_AXES)",
        ("tests/objectives/test_linear_cross_entropy.py", "-k", "devices"),
    ),
    Bug(
        "f1-counts-o-tags",
        "bertlab/transfer/scorers.py",
        'if before != "O" and (begins or part == "O"):',
        'if begins or part == "O":',
        ("tests/transfer/test_scorers.py", "-k", "entities"),
    ),
    Bug(
        "scored-by-an-untrained-layer",
        "bertlab/objectives/program.py",
        "objective.token_logits(self._bound(name, view, lambda: encoded, True, None), hidden, side)",
        "self.body.predict_tokens(hidden, side)",
        ("tests/transfer/test_likelihood.py", "-k", "first_trained"),
    ),
    Bug(
        "bits-per-token-called-bits-per-byte",
        "bertlab/transfer/likelihood.py",
        "value = bits.sum() / sizes.sum()",
        "value = bits.sum() / tokens",
        ("tests/transfer/test_likelihood.py", "-k", "bits_per_byte"),
    ),
    Bug(
        "bootstrap-ignores-pairing",
        "bertlab/studies/statistics.py",
        "_draw(of, rows[0] if paired else rows_of, rng)",
        "_draw(of, rows_of, rng)",
        ("tests/studies/test_statistics.py", "-k", "shared_pretraining"),
    ),
    Bug(
        "seed-axis-not-set-in-data",
        "bertlab/studies/study.py",
        'own["data.seed"] = own["seed"]',
        "pass",
        ("tests/studies/test_study.py",),
    ),
    Bug(
        "selected-on-test",
        "bertlab/studies/selection.py",
        'results.values(measure), results.values(measure._replace(split="valid"))',
        "results.values(measure), results.values(measure)",
        ("tests/studies/test_selection.py",),
    ),
    Bug(
        "worst-rate-selected",
        "bertlab/studies/selection.py",
        "min(losses, key=order)",
        "max(losses, key=order)",
        ("tests/studies/test_rates.py",),
    ),
    Bug(
        "same-dropout-in-every-micro-batch",
        "bertlab/train/state.py",
        "keys = jax.random.split(dropout_key, micro_batches)",
        "keys = jnp.stack([dropout_key] * micro_batches)",
        ("tests/train/test_state.py",),
    ),
    Bug(
        "one-key-for-all-evaluation-batches",
        "bertlab/train/loop.py",
        "put_batch(self.mesh, batch, whole=True), np.int32(i), carry)",
        "put_batch(self.mesh, batch, whole=True), np.int32(0 * i), carry)",
        ("tests/train/test_state.py",),
    ),
    Bug(
        "most-frequent-answer-of-the-scored-split",
        "bertlab/transfer/scoring.py",
        """kind.most_frequent(examples["train"], labels, lines)""",
        """kind.most_frequent(examples[split], labels, lines)""",
        ("tests/transfer/test_scoring.py", "-k", "rows_of_several_tasks"),
    ),
    Bug(
        "warm-up-of-an-adaptation-without-its-most",
        "bertlab/transfer/adapt.py",
        "min(config.optimizer.warmup_steps / theirs, 0.1)",
        "(config.optimizer.warmup_steps / theirs)",
        ("tests/transfer/test_adapt.py", "-k", "warm_up"),
    ),
    Bug(
        "evaluation-masks-as-at-the-start",
        "bertlab/train/state.py",
        "program.views(batch, key), carry)",
        "program.views(batch, key, 0.0), carry)",
        ("tests/train/test_state.py",),
    ),
    Bug(
        "padding-counted-as-tokens",
        "bertlab/train/state.py",
        'jnp.sum(batch["documents"] > 0)',
        'jnp.sum(batch["documents"] >= 0)',
        ("tests/train/test_state.py",),
    ),
    Bug(
        "phases-of-a-budget-priced-alike",
        "bertlab/train/budget.py",
        "total += (share[1] - share[0]) *",
        "total += 1 / len(experiment.phases) *",
        ("tests/train/test_budget.py", "-k", "priced_by_their_shares"),
    ),
    Bug(
        "floor-of-the-first-mask-rate",
        "bertlab/objectives/masked.py",
        "rate=self.final_rate or self.rate)",
        "rate=self.rate)",
        ("tests/objectives/test_masked.py", "-k", "floor_is_that_of_the_rate"),
    ),
    Bug(
        "guessing-of-the-test-split",
        "bertlab/train/build.py",
        'batches = evaluations["valid"]',
        'batches = evaluations["test"]',
        ("tests/data/test_facts.py",),
    ),
    Bug(
        "diffusion-weights-too-small-for-few-masks",
        "bertlab/objectives/diffusion.py",
        "return t, 1 / t",
        "return t, 1 / jnp.sqrt(t)",
        ("tests/objectives/test_diffusion.py",),
    ),
    Bug(
        "mask-can-be-predicted",
        "bertlab/objectives/diffusion.py",
        "weights, never=model.vocabulary.mask_id)",
        "weights)",
        ("tests/objectives/test_diffusion.py",),
    ),
    Bug(
        "hidden-tokens-shown-in-any-order",
        "bertlab/objectives/base.py",
        'jnp.where(ranks == HIDDEN, model.vocabulary.mask_id, view["tokens"])',
        'jnp.where(ranks < 0, model.vocabulary.mask_id, view["tokens"])',
        ("tests/transfer/test_any_order.py",),
    ),
    Bug(
        "steps-of-an-order-without-a-random-start",
        "bertlab/transfer/likelihood.py",
        "int((start + step) * pieces / number)",
        "int(step * pieces / number)",
        ("tests/transfer/test_any_order.py",),
    ),
    Bug(
        "revealed-pieces-stay-hidden",
        "bertlab/transfer/sample.py",
        "ranks[rows, places] = 1 + first + np.arange(begin, stop)",
        "ranks[rows, places] = HIDDEN",
        ("tests/transfer/test_sample.py",),
    ),
    Bug(
        "running-statistics-left-to-the-optimizer",
        "bertlab/train/state.py",
        "params = with_statistics(optax.apply_updates(state.params, updates), statistics)",
        "params = optax.apply_updates(state.params, updates)",
        ("tests/transfer/test_running_statistics.py", "-k", "whole"),
    ),
    Bug(
        "padding-rows-counted-by-batch-norm",
        "bertlab/transfer/task_models.py",
        "there, axes = counted[..., None], tuple(range(x.ndim - 1))",
        "there, axes = jnp.ones_like(counted)[..., None], tuple(range(x.ndim - 1))",
        ("tests/transfer/test_task_models.py", "-k", "batch_norm"),
    ),
    Bug(
        "gru-resets-before-the-product",
        "bertlab/models/recurrent.py",
        "n = jnp.tanh(n + r * product)",
        "n = jnp.tanh(n + (r * before) @ kernel[:, -len(kernel) :] + bias)",
        ("tests/transfer/test_task_models.py", "-k", "gru"),
    ),
    Bug(
        "frozen-word-vectors-trained",
        "bertlab/transfer/finetune.py",
        'if entry.get("word_vectors") and not entry.word_vectors_trained and pattern',
        'if entry.get("word_vectors") and entry.word_vectors_trained and pattern',
        ("tests/transfer/test_pretrained_word_vectors.py", "-k", "frozen"),
    ),
    Bug(
        "word-vectors-left-at-zero",
        "bertlab/transfer/composition.py",
        'features = {**head["features"], VECTORS: of_task.table()}',
        'features = head["features"]',
        ("tests/transfer/test_pretrained_word_vectors.py", "-k", "beside"),
    ),
    Bug(
        "sentinel-sees-its-first-word",
        "bertlab/objectives/span_corruption.py",
        "jnp.where(used, 2 * at + 1, 0)",
        "jnp.where(used, 2 * at + 2, 0)",
        ("tests/objectives/test_span_corruption.py", "-k", "leak"),
    ),
    Bug(
        "positions-tell-the-length-of-a-span",
        "bertlab/objectives/span_corruption.py",
        'positions = batch["positions"] - (hidden - before) + jnp.where(masked, index - first, 0)',
        'positions = batch["positions"]',
        ("tests/objectives/test_span_corruption.py", "-k", "input_and_target"),
    ),
    Bug(
        "all-tokens-predict-what-is-shown",
        "bertlab/objectives/masked.py",
        'original = put_at(view["tokens"], view["masked_positions"], view["masked_weights"], view["masked_labels"])',
        'original = view["tokens"]',
        ("tests/objectives/test_masked.py", "-k", "all_tokens"),
    ),
    Bug(
        "zero-shot-threshold-for-the-other-class",
        "bertlab/transfer/zero_shot.py",
        'labels = [example.label for example in data.examples["valid"]]',
        'labels = [1 - example.label for example in data.examples["valid"]]',
        ("tests/transfer/test_zero_shot.py", "-k", "answered"),
    ),
)
