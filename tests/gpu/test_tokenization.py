"""Text is data: it never becomes a control token, and in mid-context its bytes are kept exactly.

On tokenizers of every supported kind, trained here on a few sentences.
"""

import itertools
import json
import warnings

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from llguidance.hf import from_tokenizer
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from smcprog.errors import ModelError, VocabularyError
from smcprog.gpu.tokenization import HFTokenization
from smcprog.text import Special, special

CORPUS = [
    "The quick brown fox jumps over the lazy dog, 1234567890 times.",
    "Review: great phone, bad battery\nSentiment: negative\n\n    indented code: x = 10",
    "user asks the assistant a question; the system answers. <, |, >, [, ], /",
    "C'est l'été où naïve café",
] * 20
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MARKERS = ["<think>", "</think>", "[TOOL]"]
WHITE_SPACE = ["    ", "\n\n\n"]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] | trim }}"
    "{% if not loop.last or m['role'] != 'assistant' %}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if think %}<think>\n{% endif %}"
    "{% endif %}"
)


def add_markers(tokenizer: Tokenizer) -> None:
    tokenizer.add_special_tokens(SPECIALS)
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in MARKERS])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in WHITE_SPACE])


def byte_level(split_digits: bool = False, prefix_space: bool = False) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    level = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    digits = [pre_tokenizers.Digits(individual_digits=True)] if split_digits else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*digits, level])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    )
    add_markers(tokenizer)
    return tokenizer


BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]
SENTENCEPIECE_DECODER = [
    decoders.Replace("▁", " "),
    decoders.ByteFallback(),
    decoders.Fuse(),
    decoders.Strip(" ", 1, 0),
]


def sentencepiece(legacy: bool = False) -> Tokenizer:
    """A BPE with ▁ and byte fallback; ``legacy`` does it by normalizers, as Llama 2."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trained.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=300, show_progress=False))
    model = json.loads(trained.to_str())["model"]
    pieces = ["<unk>", "<s>", "</s>", *BYTE_TOKENS]
    pieces += sorted(model["vocab"], key=model["vocab"].get)
    tokenizer = Tokenizer(
        models.BPE(
            vocab={piece: i for i, piece in enumerate(pieces)},
            merges=[tuple(merge) for merge in model["merges"]],
            byte_fallback=True,
            unk_token="<unk>",
            fuse_unk=True,
        )
    )
    if legacy:
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(SENTENCEPIECE_DECODER)
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    add_markers(tokenizer)
    return tokenizer


def unigram() -> Tokenizer:
    """Its control pieces stand in the model's own vocabulary, with the best of scores."""
    scores = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), ("<think>", 0.0)]
    scores += [(token, -20.0) for token in BYTE_TOKENS]
    words = {word for line in CORPUS for word in line.split()}
    scores += [(f"▁{word}", -6.0) for word in sorted(words)]
    scores += [(char, -10.0) for char in sorted({*"".join(CORPUS), "▁"} - {" ", "\n"})]
    tokenizer = Tokenizer(models.Unigram(scores, unk_id=0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(SENTENCEPIECE_DECODER)
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    add_markers(tokenizer)
    return tokenizer


def normalising() -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    return tokenizer


def wrapped(backend: Tokenizer, **special_tokens: str) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special_tokens)


def hf(backend: Tokenizer, **special_tokens: str) -> HFTokenization:
    tokenizer = wrapped(backend, **{"eos_token": SPECIALS[0], **special_tokens})
    tokenizer.chat_template = CHATML
    size = backend.get_vocab_size() + 5  # padded logits, as models have them
    return HFTokenization(tokenizer, size, (tokenizer.eos_token_id,))


@pytest.fixture(scope="module")
def kinds() -> dict[str, HFTokenization]:
    return {
        "byte level": hf(byte_level()),
        "byte level, digits": hf(byte_level(split_digits=True)),
        "byte level, prefix": hf(byte_level(prefix_space=True)),
        "sentencepiece": hf(sentencepiece()),
        "sentencepiece, legacy": hf(sentencepiece(legacy=True)),
        "unigram": hf(unigram()),
        "normalising": hf(normalising()),
    }


KINDS = pytest.mark.parametrize(
    "kind",
    [
        "byte level",
        "byte level, digits",
        "byte level, prefix",
        "sentencepiece",
        "sentencepiece, legacy",
        "unigram",
        "normalising",
    ],
)
NATURAL = [
    "The quick brown fox",
    " great phone, bad battery",
    "x",
    "12345 times",
    "line\n\n    indented",
    "C'est l'été",
    "中文 🎉 ",
]
NASTY = ["<|im_", "end|>", "<s>", "</s>", "<unk>", "<0x41>", "▁", "Ġ", "é", "e\u0301", "ﬁ", "\0"]
NASTY += [
    "\x7f",
    "\u200b",
    "\ud7ff",
    "\ufdd0",
    "\U0010ffff",
    "\r\n",
    " ",
    "  ",
    "A",
    "1",
    "\t",
    "[/",
]
texts = st.lists(
    st.one_of(st.sampled_from(SPECIALS + MARKERS + WHITE_SPACE + NASTY), st.text(max_size=5)),
    max_size=8,
).map("".join)


@KINDS
@settings(max_examples=150, deadline=None)  # of 7 tokenizers
@example("a<|im_end|><think>", "b")
@given(texts, texts)
def test_text_is_data(kinds, kind, text, more):
    """Whatever it spells, it never becomes a control token, and its bytes stay."""
    tokenization = kinds[kind]
    control = tokenization.vocabulary.control_ids
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        continued = tokenization.encode([text, more], at_start=False)
        opening = tokenization.encode([text, more], at_start=True)
    data = (text + more).encode()
    assert control.isdisjoint(continued) and control.isdisjoint(opening)
    assert tokenization.vocabulary.decode(continued) == data
    assert tokenization.vocabulary.decode(opening) in (data, b" " + data)


@KINDS
@settings(max_examples=100, deadline=None)
@given(st.one_of(st.binary(max_size=12), texts.map(str.encode)))
def test_fragments_of_bytes(kinds, kind, data):
    ids = kinds[kind].encode_bytes(data)
    assert kinds[kind].vocabulary.decode(ids) == data
    assert kinds[kind].vocabulary.control_ids.isdisjoint(ids)


@KINDS
def test_the_natural_encoding_where_it_is_exact(kinds, kind):
    """A first text is encoded as the tokenizer does; a later one as it does behind other text."""
    tokenization = kinds[kind]
    decode = tokenization.vocabulary.decode
    compared = 0
    for text in NATURAL:
        own = tokenization._tokenizer(text, add_special_tokens=False)["input_ids"]
        if decode(own) in (text.encode(), b" " + text.encode()):
            assert tokenization.encode([text], at_start=True) == own, text
            compared += 1
        behind = tokenization._tokenizer("1\n" + text, add_special_tokens=False)["input_ids"]
        cuts = [n for n in range(4) if decode(behind[:n]).lstrip() == b"1\n"]
        if cuts and decode(behind[cuts[0] :]) == text.encode():
            assert tokenization.encode([text], at_start=False) == behind[cuts[0] :], text
            compared += 1
    assert compared >= 5


@KINDS
def test_the_bytes_of_tokens_are_those_llguidance_finds(kinds, kind):
    tokenization = kinds[kind]
    theirs = from_tokenizer(tokenization._tokenizer)
    vocabulary = tokenization.vocabulary
    for i, token in enumerate(vocabulary.tokens):
        if token and token != b"\xff":  # which llguidance keeps for itself
            assert token == theirs.decode_bytes([i]), i


def test_control_ids(kinds):
    """Special tokens, markers special or not, and padding; no white space, no words."""
    backend = byte_level()
    backend.add_tokens(["frobnicate", "..."])
    tokenization = hf(backend)
    vocabulary = tokenization.vocabulary
    ids = {token: backend.token_to_id(token) for token in SPECIALS + MARKERS}
    padding = range(backend.get_vocab_size(), vocabulary.size)
    assert vocabulary.control_ids == {*ids.values(), *padding}
    assert len(padding) == 5
    for text in [*WHITE_SPACE, "frobnicate", "..."]:
        assert tokenization.encode([text], at_start=False) == [backend.token_to_id(text)]


def test_ids_beyond_the_model_do_not_exist():
    backend = byte_level()
    tokenizer = wrapped(backend, eos_token=SPECIALS[0])
    size = backend.token_to_id("    ")  # the model's logits end before the last added tokens
    tokenization = HFTokenization(tokenizer, size, (tokenizer.eos_token_id,))
    ids = tokenization.encode(["a    b"], at_start=False)
    assert max(ids) < size and tokenization.vocabulary.decode(ids) == b"a    b"


def test_a_spelled_token_is_named_once():
    tokenization = hf(byte_level())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tokenization.encode(["a<|im_end|>b<|im_end|>", "<thi", "nk>"], at_start=False)
    assert [warning.category for warning in caught] == [UserWarning] * 2
    for warning, token in zip(caught, ["<|im_end|>", "<think>"], strict=True):
        assert f"write special({token!r})" in str(warning.message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tokenization.encode(["<|im_end|>"], at_start=False)


def test_special_parts(kinds):
    for tokenization in kinds.values():
        to_id = tokenization._tokenizer.convert_tokens_to_ids
        parts = [special("<|im_start|>"), "us", "er", special("<think>"), special("<|im_end|>")]
        ids = tokenization.encode(parts, at_start=False)
        assert [ids[0], *ids[-2:]] == [to_id(t) for t in ("<|im_start|>", "<think>", "<|im_end|>")]
        assert tokenization.vocabulary.decode(ids) == b"user"
    with pytest.raises(VocabularyError, match=r"'<\|im_stop\|>'; it has .*'<\|im_start\|>'"):
        kinds["byte level"].encode([special("<|im_stop|>")], at_start=False)


def test_the_first_word_behind_a_leading_special(kinds):
    """The tokenizer's own convention: Llama 2's normalizer puts a space there, others do not."""
    for kind, tokenization in kinds.items():
        parts = [special("<|im_start|>"), "a dog"]
        own = tokenization._tokenizer("".join(parts), add_special_tokens=False)["input_ids"]
        assert tokenization.encode(parts, at_start=True) == own, kind
        assert tokenization.vocabulary.decode(tokenization.encode(parts, False)) == b"a dog"


@pytest.mark.parametrize("text", ["", "\0", "\x00\x1b[0m", "a\u2028b", "\U0010ffff"])
def test_odd_texts(kinds, text):
    for tokenization in kinds.values():
        ids = tokenization.encode([text], at_start=False)
        assert tokenization.vocabulary.decode(ids) == text.encode()
    assert tokenization.encode([""], at_start=True) == tokenization.encode([], at_start=True) == []


def test_a_long_text_that_is_inexact_in_one_place_is_natural_elsewhere(kinds):
    tokenization = kinds["normalising"]
    text = "the quick brown fox " * 2_500
    natural = tokenization.encode([text], at_start=False)
    changed = tokenization.encode([text + "ﬁ " + text], at_start=False)
    assert tokenization.vocabulary.decode(changed) == (text + "ﬁ " + text).encode()
    assert len(changed) < 2 * len(natural) + 30


def test_errors(kinds):
    with pytest.raises(VocabularyError, match="lone surrogate.*position 1"):
        kinds["byte level"].encode(["a\ud800"], at_start=False)
    with pytest.raises(ModelError, match="not a fast tokenizer"):
        HFTokenization(object(), 10, ())
    with pytest.raises(ModelError, match="EOS ids"):
        HFTokenization(wrapped(byte_level()), 10, (10,))
    word_piece = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    with pytest.raises(ModelError, match="WordPiece.*byte-level"):
        HFTokenization(wrapped(word_piece), 2, ())


@pytest.mark.parametrize(
    ("template", "starts"),
    [(None, []), ("<|im_start|> $A", ["<|im_start|>"]), ("$A <|im_end|>", [])]
    + [("<|im_start|> $A <|im_end|>", ["<|im_start|>"])],
)
def test_what_opens_a_context(template, starts):
    backend = byte_level()
    ids = {token: backend.token_to_id(token) for token in SPECIALS}
    if template:
        backend.post_processor = processors.TemplateProcessing(
            single=template, pair=None, special_tokens=list(ids.items())
        )
    tokenization = hf(backend)
    assert tokenization.start_ids == tuple(ids[token] for token in starts)
    assert tokenization.empty_context_ids == (ids["<|endoftext|>"],)
    with_bos = hf(backend, bos_token="<|im_start|>")
    assert with_bos.empty_context_ids == (ids["<|im_start|>"],)
    assert HFTokenization(wrapped(byte_level()), 500, ()).empty_context_ids == ()


def test_chat(kinds):
    tokenization = kinds["byte level"]
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi "}]
    parts = tokenization.render_chat(messages, None, {"think": True})
    assert parts == (
        ["<|im_start|>", "system\nBe brief.", "<|im_end|>", "\n"]
        + ["<|im_start|>", "user\nHi", "<|im_end|>", "\n", "<|im_start|>", "assistant\n"]
        + ["<think>", "\n"]
    )
    assert [p for p in parts if isinstance(p, Special)] == [p for p in parts if p[0] == "<"]
    ids = tokenization.encode(parts, at_start=True)
    own = tokenization._tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, think=True, return_dict=False
    )
    assert ids == own


def test_a_last_message_of_the_assistant_stays_open(kinds):
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well,"}]
    parts = kinds["byte level"].render_chat(messages, None, {})
    assert parts[-2:] == ["<|im_start|>", "assistant\nWell,"]


@settings(max_examples=100, deadline=None)
@given(texts.map(str.strip), texts.map(str.strip), texts)
def test_messages_cannot_inject_control_tokens(kinds, content, other, tool):
    messages = [
        {"role": "user", "content": content},
        {"role": "tool", "content": other, "name": tool},
        {"role": "user", "content": "end"},
    ]
    tools = [{"type": "function", "function": {"name": "f", "description": tool}}]
    template = "{{ tools[0]['function']['description'] }}" + CHATML
    parts = kinds["byte level"].render_chat(messages, tools, {"chat_template": template})
    meant = [str(part) for part in parts if isinstance(part, Special)]
    assert meant == ["<|im_start|>", "<|im_end|>"] * 3 + ["<|im_start|>"]
    expected = f"{tool}<|im_start|>user\n{content}<|im_end|>\n<|im_start|>tool\n{other}<|im_end|>"
    assert "".join(parts).startswith(expected)
    plain = [not isinstance(part, Special) for part in parts]
    assert not any(a and b for a, b in itertools.pairwise(plain))  # texts are joined


def test_templates_still_see_the_markers_that_they_look_for(kinds):
    """Qwen's template cuts the thoughts of earlier turns at </think>."""
    template = "{% for m in messages %}{{ m['content'].split('</think>')[-1] }};{% endfor %}"
    parts = kinds["byte level"].render_chat(
        [{"role": "user", "content": "<think>hm</think>yes<|im_end|>"}] * 2,
        None,
        {"chat_template": template},
    )
    assert parts == ["yes<|im_end|>;yes<|im_end|>;"]


def test_keys_of_arguments_are_data_too(kinds):
    template = "{{ messages[0]['arguments'] | tojson }}<|im_end|>"
    message = {"role": "user", "arguments": {"<|im_start|>": ["<think>", 1, None, True]}}
    parts = kinds["byte level"].render_chat([message], None, {"chat_template": template})
    assert parts == ['{"<|im_start|>": ["<think>", 1, null, true]}', "<|im_end|>"]
    assert isinstance(parts[1], Special)


def test_tokens_that_swallow_white_space():
    backend = byte_level()
    backend.add_special_tokens(
        [AddedToken("<|right|>", rstrip=True, special=True)]
        + [AddedToken("<|left|>", lstrip=True, special=True)]
    )
    tokenization = hf(backend)
    text = "a <|right|> \n b <|left|> c"
    parts = tokenization.render_chat([{"role": "user"}], None, {"chat_template": text})
    assert parts == ["a ", "<|right|>", "b", "<|left|>", " c"]
    own = tokenization._tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenization.encode(parts, at_start=True) == own


def test_a_python_function_as_a_tool(kinds):
    def weather(city: str) -> str:
        """Weather of a city, not <|im_end|>.

        Args:
            city: where
        """
        return city

    template = "{{ tools | tojson }}"
    parts = kinds["byte level"].render_chat(
        [{"role": "user", "content": "?"}], [weather], {"chat_template": template}
    )
    assert len(parts) == 1
    assert json.loads(parts[0])[0]["function"]["description"].endswith("not <|im_end|>.")


def test_chat_errors(kinds):
    plain = hf(byte_level())
    plain._tokenizer.chat_template = None
    with pytest.raises(ModelError, match="no chat template"):
        plain.render_chat([{"role": "user", "content": "?"}], None, {})
    with pytest.raises(ModelError, match="plain dicts"):
        kinds["byte level"].render_chat([{"role": "user", "content": object()}], None, {})
    strict = {"chat_template": "{{ raise_exception('roles must alternate') }}"}
    with pytest.raises(ModelError, match="roles must alternate"):
        kinds["byte level"].render_chat([{"role": "user", "content": "?"}], None, strict)
