"""Every key of a config with its default; a recipe changes some of them, `--config.KEY=VALUE` any.

The objectives' own settings are the fields of their classes. A key without a default of its own is
a placeholder: then the model's family and size decide.
"""

import copy
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

DEFAULTS = dict(
    seed=0,  # seed of initial values, masks and dropout
    data=dict(
        # pydocs, text:GLOB, files:GLOB (a document per file), splits:FOLDER (published files of
        # train, valid and test), tfds:NAME or synthetic
        corpus="pydocs",
        # segment_pair, full_sentences, sentence_pair, doc_sentences, sentences, stream,
        # cooccurrence: how documents become rows (bertlab/data/formats)
        format="segment_pair",
        seq_len=128,  # tokens per row
        batch_size=32,  # rows per batch
        # seed of the order of documents, separate from `seed`: all seeds of a study can read
        # the same tokens
        seed=0,
        # times a document is read before its random choices repeat (BERT: 10); 0: never
        dupe_factor=0,
        # train on only this many tokens of the text, in whole documents, repeatedly; 0: all
        unique_tokens=0,
        drop_duplicates=False,  # leave out documents whose text occurred before, in any split
        directory="",  # directory of prepared corpora; empty: $BERTLAB_CACHE or ~/.cache/bertlab
        workers=0,  # processes for preparation; 0: one per core
        valid_fraction=0.05,  # share of documents (of a long one's sections) held out as valid
        test_fraction=0.05,  # share of documents held out as test
        pack_length=0,  # tokens of a packed row: several rows without their padding; 0: off
        pack_examples=8,  # rows in a packed row, at most
        # lengths such as (32, 64): each batch has rows of similar length, cut to one of these or
        # seq_len
        buckets=(),
        tokenizer=dict(
            kind="unigram",  # unigram, bpe, wordpiece, words
            vocab_size=4096,  # vocabulary size, including special tokens
            path="",  # a saved tokenizer or a vocab.txt, instead of training one
            lowercase=False,  # lower-case the text first
            # where words end: punctuation, or whitespace alone (for text that is split into tokens)
            split="punctuation",
            sample_sentences=1000000,  # sentences to train the tokenizer on
            seed=0,  # seed of that sample
        ),
        segment_pair=dict(
            short_probability=0.1,  # share of rows with a shorter target length (BERT)
            random_next_probability=0.5,  # share of negative pairs
            force_random_if_single=True,  # after a chunk of one sentence, always random (BERT)
            own_document_retries=10,  # draws to find another document; then any (BERT)
            negatives="random",  # random: B from another document (nsp); swapped: B before A (sop)
        ),
        sentence_pair=dict(
            random_next_probability=0.5,  # share of negative pairs
            force_random_if_single=False,  # after a document of one sentence, always random
            own_document_retries=10,  # draws to find another document; then any
            negatives="random",  # random: B from another document (nsp); swapped: B before A (sop)
        ),
        full_sentences=dict(
            attend_across_documents=False,  # attention crosses document boundaries in a row
            document_separator=True,  # an extra [SEP] between documents
        ),
        stream=dict(
            # document: [SEP] after each; sentence: [CLS] sentence [SEP] (ELMo); none: nothing
            wrap="document",
            backward=False,  # a second, independent stream for right-to-left models
            attend_across_documents=True,  # states carry over from one document to the next
            # rows of about seq_len, sometimes half, with the rate in proportion (AWD-LSTM)
            vary_length=False,
        ),
        cooccurrence=dict(
            window=15,  # words on each side that count as context (GloVe)
        ),
        characters=False,  # the characters of each word too; needs tokenizer.kind=words
        tfds=dict(
            split="train",  # split of the TFDS dataset
            field="text",  # field of the TFDS dataset that contains the text
        ),
        synthetic=dict(
            documents=2000,  # number of documents in the synthetic language
            vocab_size=64,  # number of words in its vocabulary
            topics=4,  # number of topics
            states=8,  # number of hidden states
            seed=0,  # seed of the language
            sentence_words=(4, 12),  # shortest and longest sentence, in words
            document_sentences=(4, 40),  # shortest and longest document, in sentences
        ),
    ),
    init_from="",  # a run or import to start from: its parameters, model shape and tokenizer
    init_step=placeholder(int),  # the step of its checkpoint (train.keep); unset: the last
    model=dict(
        family="bert",  # bert, gpt, modern, elmo, awd_lstm, static
        size="tiny",  # a size of the family (bertlab/models/presets.py)
        direction=placeholder(str),  # bidirectional, left-to-right, right-to-left: what is seen
        dtype="float32",  # float32 or bfloat16, for the computation; parameters are float32
        # none, dots, full: what the backward pass recomputes: nothing, all except matrix products,
        # or each layer
        remat="none",
        # layers in a loop (compiles faster) or unrolled; unset: unrolled if few and on a CPU
        scan_layers=placeholder(bool),
        attention="auto",  # auto (by a rule: bertlab/models/attention.py), xla, cudnn, module:name
        stateful=False,  # a recurrent model carries its state along format stream
        layers=placeholder(int),  # number of layers
        width=placeholder(int),  # width of the states
        heads=placeholder(int),  # number of attention heads
        hidden=placeholder(int),  # width of the feed-forward layer or the LSTM cell
        max_positions=placeholder(int),  # rows of the position table
        dropout=placeholder(float),  # dropout rate; for awd_lstm, that of the output
        # --- transformers
        # initial values from a normal, truncated at two deviations (BERT) or full
        truncated_init=placeholder(bool),
        scaled_residual_init=placeholder(bool),  # smaller values for residual outputs (GPT-2)
        # standard deviation of kernels and embeddings; 0.02 is small for narrow models
        init_stddev=placeholder(float),
        base_width=placeholder(int),  # the width that rates and init_stddev are for (μP); 0: this
        activation=placeholder(str),  # gelu_tanh, gelu_erf, relu, silu: activation
        gated=placeholder(bool),  # feed-forward layer with a gate (GeGLU, SwiGLU)
        norm=placeholder(str),  # layer_norm, rms_norm: kind of norm
        norm_placement=placeholder(str),  # post, pre: norm after or before each sublayer
        first_norm=placeholder(bool),  # a norm before the first attention too (not ModernBERT)
        embedding_norm=placeholder(bool),  # a norm after the embeddings
        final_norm=placeholder(bool),  # a norm after the last layer
        epsilon=placeholder(float),  # epsilon of the norms
        use_bias=placeholder(bool),  # biases in dense layers and norms
        # learned, sinusoidal, rotary, relative, none or module:Class: positions
        position_encoding=placeholder(str),
        position_buckets=placeholder(int),  # for a module:Class that has them
        position_offset=placeholder(int),  # first row of the position table in use (RoBERTa: 2)
        rotary_base=placeholder(float),  # base of the rotary angles
        rotary_base_local=placeholder(float),  # base of the rotary angles in local layers
        # positions that a local layer sees, both sides together; 1: only itself; 0: all
        local_window=placeholder(int),
        global_every=placeholder(int),  # every n-th layer, including the first, sees everything
        segments=placeholder(int),  # rows of the segment embedding; 0: none
        output_transform=placeholder(bool),  # dense layer and norm before the output layer (BERT)
        tied=placeholder(bool),  # output layer shares the token embeddings
        output_bias=placeholder(bool),  # bias of the output layer
        # --- static
        # zeros, uniform: initial output vectors, zeros (word2vec) or uniform (GloVe)
        output_init=placeholder(str),
        # --- elmo
        token_encoder=placeholder(str),  # ids, characters: subword ids or characters
        highway_layers=placeholder(int),  # highway layers over the character convolutions
        filters=placeholder(tuple),  # (width, number) of each character convolution
        character_width=placeholder(int),  # width of a character's embedding
        character_activation=placeholder(str),  # relu, tanh: after each character convolution
        skip_connections=placeholder(bool),  # residuals between the LSTM layers
        clip=placeholder(float),  # bound of cell states and projections
        # --- awd_lstm
        embedding_dropout=placeholder(float),  # dropout of whole words
        input_dropout=placeholder(float),  # dropout of the first layer's input
        hidden_dropout=placeholder(float),  # dropout between layers
        weight_dropout=placeholder(float),  # dropout of recurrent weights
    ),
    objectives={},  # weight, final_weight and settings of each objective
    optimizer=dict(
        # adam, adagrad, sgd, lamb, muon: update rule; muon: for the layers' matrices, Adam for the
        # rest
        name="adam",
        learning_rate=0.001,  # highest learning rate
        warmup_steps=placeholder(int),  # steps of the rate's linear rise; unset: a tenth of all
        # linear, cosine, constant, slanted_triangular, warmup_linear, reverse_cosine: how the rate
        # falls (bertlab/train/schedules.py)
        decay="linear",
        cooldown_steps=0,  # last steps, in which the rate falls linearly to 0
        decay_from_start=True,  # decay counts from step 0, with a drop after warm-up (BERT)
        cut_fraction=0.1,  # slanted_triangular: share of the steps in which the rate rises
        ratio=32.0,  # slanted_triangular: highest rate over lowest rate
        b1=0.9,  # Adam's β1
        b2=0.999,  # Adam's β2
        epsilon=1e-06,  # Adam's ε
        # none, moments, rate: Adam's bias correction: none (BERT), of the moments (Adam's paper)
        # or in the rate (GPT)
        bias_correction="none",
        weight_decay=0.01,  # weight decay
        coupled_decay=False,  # decay in the gradient (L2) instead of the update
        decay_exclude="(norm|bias)",  # pattern of parameter paths without weight decay
        initial_accumulator=1.0,  # adagrad: initial sum of squares
        muon_momentum=0.95,  # muon: Nesterov momentum
        gradient_scale=1.0,  # factor before clipping: ELMo multiplies its loss by its 20 steps
        clip_norm=1.0,  # largest norm of the gradient; 0: no clipping
        average_after=0,  # sgd: averages once valid exceeds its best before n losses (NT-ASGD)
        # updates after which NT-ASGD begins again from its average (AWD-LSTM's fine-tuning); 0:
        # never
        average_again=0,
        layer_decay=1.0,  # a layer group's rate over the one above (ULMFiT: 1/2.6, FitLaM: 0.3)
        group_rates="",  # instead of layer_decay, a factor for each group: "0.1667,0.3333,1,0.5"
        # all, head, last, gradual, chain: what is trained when; last: head and top layer; gradual:
        # ULMFiT; chain: chain-thaw
        thaw="all",
        thaw_steps=0,  # gradual, chain: updates per stage until everything is trained
        thaw_stages=0,  # gradual, chain: number of stages; 0: one per group
        thaw_restarts=False,  # gradual, chain: each stage runs the whole schedule
        frozen="",  # pattern of parameter paths that are never trained, such as "^body/"
    ),
    lora=dict(
        rank=0,  # rank of low-rank updates of kernels (Hu et al. 2021); 0: none
        alpha=8.0,  # low-rank updates are multiplied by alpha / rank
        targets="qkv_kernel/(query|value)$",  # pattern of the updated kernels' paths
    ),
    train=dict(
        steps=1000,  # number of updates
        tokens=0,  # instead of `steps`: train on this many tokens, without padding; 0: off
        # curriculum, such as "0.9 data.seq_len=128; 0.1 data.seq_len=512" (bertlab/train/phases.py)
        phases="",
        micro_batches=1,  # per update (gradient accumulation); each draws its own dropout
        log_every=50,  # steps between log lines
        eval_every=200,  # steps between evaluations on valid; 0: only at the end
        eval_batches=20,  # batches per evaluation, also of valid and test at the end
        checkpoint_every=200,  # steps between checkpoints; 0: only at the end
        keep_checkpoints=2,  # how many of the latest checkpoints to keep; 0: all
        # steps whose checkpoints are also written and kept: log (10, 20, 50, 100, ... and the last)
        # or steps such as 100,1000,4000
        keep="",
    ),
    evaluate=dict(
        sentences=64,  # test sentences to score in bits per byte after training; 0: none
        # bytes of whole test documents to score instead, such as 1_000_000; pseudo-log-likelihoods
        # then score `sentences` of their rows
        bytes=0,
        # module:function that scores baselines on these documents; empty: none
        baselines="bertlab.contrib.ngrams:baselines",
        text="",  # a file of texts, one per line, to score in bits per byte
        kinds="",  # kinds of score (bertlab/evals/code_length.py) joined by commas; empty: all
        floors=False,  # on the synthetic language: the exact floors and the loss above them
        minimal_pairs="",  # a file of minimal pairs in BLiMP's format to score after training
        pairs=20,  # minimal pairs per paradigm; 0: all
        # files of rated pairs of words, joined by commas, to compare with cosines after training
        words="",
        analogies="",  # a file of word2vec's questions to answer by words' vectors after training
    ),
    mesh=dict(
        data=-1,  # devices on the data axis; -1: all remaining devices
        fsdp=1,  # devices that share parameters and optimizer state
        tensor=1,  # devices that share each matrix product
    ),
    writers="jsonl",  # formats of the log joined by commas: jsonl (always), tensorboard, wandb
    profile=0,  # steps to trace into WORKDIR/profile for TensorBoard and Perfetto; 0: none
)


def base_config() -> ConfigDict:
    """A config with every key at its default."""
    return ConfigDict(copy.deepcopy(DEFAULTS))  # or all configs would share their placeholders


def objective_entry(weight: float, settings: Mapping[str, Any]) -> ConfigDict:
    """An entry of `config.objectives`, with a placeholder of its own: one that several share would
    be set for all of them."""
    final_weight = placeholder(float)  # reached linearly; unset: `weight`
    return ConfigDict({"weight": weight, "final_weight": final_weight, **settings})
