"""Text to tokens and back over a fast Hugging Face tokenizer, with text as data.

Two laws hold, and both are checked on every encoding, not assumed of the tokenizer:

- plain text never becomes a control token, whatever it spells: it is encoded by a copy of the
  tokenizer that does not know them;
- in mid-context the tokens' bytes are the text's UTF-8: no dummy space, no normalisation.

Where the tokenizer's own way of encoding a text breaks one of them, as few characters as possible
are encoded byte-exactly instead (`Vocabulary.encode`).
"""

from __future__ import annotations

import difflib
import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any

from tokenizers import AddedToken, Tokenizer, models

from smcprog.errors import ModelError, VocabularyError
from smcprog.text import Special
from smcprog.vocabulary import Vocabulary

# Below this length a text that the tokenizer does not encode exactly is not divided further.
_SHORT = 8


class HFTokenization:
    """The `Tokenization` of a transformers tokenizer.

    Args:
        tokenizer: a fast tokenizer (byte-level BPE, or SentencePiece-style).
        vocabulary_size: the width of the model's logits; ids beyond the tokenizer's are padding.
        eos_ids: the model's end tokens.

    Raises:
        ModelError: for a slow tokenizer, or one whose tokens do not say which bytes they are.
    """

    def __init__(self, tokenizer: Any, vocabulary_size: int, eos_ids: tuple[int, ...]) -> None:
        if not hasattr(getattr(tokenizer, "backend_tokenizer", None), "to_str"):
            raise ModelError(
                f"{type(tokenizer).__name__} is not a fast tokenizer; load it with "
                "AutoTokenizer.from_pretrained(...) from a directory that has a tokenizer.json"
            )
        if any(not 0 <= i < vocabulary_size for i in eos_ids):
            raise ModelError(f"EOS ids {eos_ids} outside the model's {vocabulary_size} tokens")
        self._tokenizer = tokenizer
        added = tokenizer.backend_tokenizer.get_added_tokens_decoder()
        known = [(token, i) for i, token in added.items() if i < vocabulary_size]
        named = zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True)
        special = {token: i for token, i in named if i < vocabulary_size}
        self._added = {token.content: i for token, i in known} | special
        self._control = {token.content: i for token, i in known if _is_control(token)} | special
        self._strips_left = {token.content for token, _ in known if token.lstrip}
        self._strips_right = {token.content for token, _ in known if token.rstrip}
        # Longest first: where two markers begin at one place, the tokenizer takes the longer.
        spellings = sorted(self._control, key=len, reverse=True)
        self._markers = "|".join(map(re.escape, spellings)) or r"(?!)"
        self._warned: set[str] = set()
        self._vocabulary = self._build_vocabulary(vocabulary_size, eos_ids)

    def _build_vocabulary(self, size: int, eos_ids: tuple[int, ...]) -> Vocabulary:
        backend = self._tokenizer.backend_tokenizer
        to_bytes = _bytes_of_pieces(backend)
        tokens = [b""] * size
        for piece, i in backend.get_vocab().items():
            if i < size and piece not in self._control:
                tokens[i] = to_bytes(piece)
        nameless = (i for i, token in enumerate(tokens) if not token)
        return Vocabulary(tokens, eos_ids, {*self._control.values(), *nameless})

    @property
    def vocabulary(self) -> Vocabulary:
        """The bytes of each id. Special tokens, chat markers and padding are control ids."""
        return self._vocabulary

    @cached_property
    def start_ids(self) -> tuple[int, ...]:
        """What the tokenizer itself puts before a text: BOS, or nothing."""
        text = "a"
        whole = self._tokenizer(text)["input_ids"]
        bare = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        for length in range(len(whole) - len(bare) + 1):
            if whole[length : length + len(bare)] == bare:
                return tuple(whole[:length])
        return ()

    @property
    def empty_context_ids(self) -> tuple[int, ...]:
        """BOS, or else the first end token, or else nothing."""
        bos = self._tokenizer.bos_token_id
        return (bos,) if bos is not None else self._vocabulary.eos_ids[:1]

    def encode(self, parts: Sequence[str], at_start: bool) -> list[int]:
        """See `Tokenization.encode`. Adjacent texts are encoded as one.

        Warns once about each special token that a text spells and does not mean.

        Raises:
            VocabularyError: for a `Special` that is unknown, a lone surrogate, or a character that
                the vocabulary cannot spell.
        """
        ids: list[int] = []
        opens = at_start
        for special, group in groupby(parts, key=lambda part: isinstance(part, Special)):
            if special:
                ids.extend(self._special_id(part) for part in group)
                opens = opens and self._first_word_follows_special
            elif text := "".join(group):
                self._warn_of_markers(text)
                ids.extend(self._encode_opening(text) if opens else self._encode_exactly(text))
                opens = False
        return ids

    def encode_bytes(self, data: bytes) -> list[int]:
        """See `Tokenization.encode_bytes`. Bytes that are no UTF-8 are encoded greedily."""
        try:
            return self._encode_exactly(data.decode())
        except UnicodeDecodeError:
            return self._vocabulary.encode(data)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None,
        template_kwargs: Mapping[str, Any],
    ) -> list[str]:
        """See `Tokenization.render_chat`. A last message of the assistant is left open.

        Raises:
            ModelError: if there is no chat template, or it refuses the messages.
        """
        if not (self._tokenizer.chat_template or "chat_template" in template_kwargs):
            raise ModelError(
                "the tokenizer has no chat template: use prompt(...), an instruction-tuned model, "
                "or set tokenizer.chat_template"
            )
        tools = tools and [tool if isinstance(tool, Mapping) else _schema(tool) for tool in tools]
        template = {k: v for k, v in template_kwargs.items() if k == "chat_template"}
        variables = {k: v for k, v in template_kwargs.items() if k != "chat_template"}
        data = (messages, tools, variables)
        # A marker that the data spells is given a mark in front; one that the template writes has
        # none. The marker itself stays, since templates look for some (as </think>).
        mark = _unused_character(data)
        messages, tools, variables = _map_strings(
            lambda text: re.sub(self._markers, lambda found: mark + found[0], text), data
        )
        try:
            continues = bool(messages) and messages[-1]["role"] == "assistant"
            options = {"add_generation_prompt": not continues, "continue_final_message": continues}
            rendered = self._tokenizer.apply_chat_template(
                messages, tools=tools, tokenize=False, **{**options, **variables, **template}
            )
        except Exception as error:  # a template raises what it likes
            raise ModelError(f"the chat template refuses these messages: {error!r}") from error
        return list(self._split_at_markers(rendered, mark))

    def _split_at_markers(self, rendered: str, mark: str) -> Iterator[str]:
        """Texts without their marks, and a `Special` for each marker that had none in front."""
        end = 0
        for found in re.finditer(f"{mark}?(?:{self._markers})", rendered):
            spelling = found[0]
            if spelling.startswith(mark):
                continue
            # Some tokens (of Phi, as one) swallow the white space beside them.
            text = rendered[end : found.start()].replace(mark, "")
            if text := (text.rstrip() if spelling in self._strips_left else text):
                yield text
            yield Special(spelling)
            end = found.end()
            if spelling in self._strips_right:
                end = len(rendered) - len(rendered[end:].lstrip())
        if text := rendered[end:].replace(mark, ""):
            yield text

    def _special_id(self, spelling: str) -> int:
        if spelling not in self._added:
            near = difflib.get_close_matches(spelling, self._added, n=3) or list(self._control)[:3]
            raise VocabularyError(
                f"the tokenizer has no special token {str(spelling)!r}; "
                f"it has {', '.join(map(repr, near)) or 'none'}"
            )
        return self._added[spelling]

    def _warn_of_markers(self, text: str) -> None:
        for spelling in dict.fromkeys(re.findall(self._markers, text)):
            if spelling not in self._warned:
                self._warned.add(spelling)
                warnings.warn(
                    f"text spells the special token {spelling!r}; it is encoded as plain "
                    f"characters. To mean the token, write special({spelling!r})",
                    UserWarning,
                    stacklevel=3,
                )

    @cached_property
    def _opening(self) -> _PlainEncoder:
        """The tokenizer as it encodes the first text of a context."""
        backend = self._tokenizer.backend_tokenizer
        return _PlainEncoder(backend, self._control, _components(backend))

    @cached_property
    def _continuing(self) -> _PlainEncoder:
        """The tokenizer without the space that it would put before a first word."""
        backend = self._tokenizer.backend_tokenizer
        components = _components(backend)
        edited = _without_first_space(components)
        if edited == components:
            return self._opening
        return _PlainEncoder(backend, self._control, edited)

    @cached_property
    def _first_word_follows_special(self) -> bool:
        """Whether a text after a leading special token still counts as the first."""
        if not self._control:
            return False
        backend = self._tokenizer.backend_tokenizer
        text = "a"
        ids = backend.encode(next(iter(self._control)) + text, add_special_tokens=False).ids
        return ids[1:] == self._opening.encode(text)

    def _encode_opening(self, text: str) -> list[int]:
        data = _utf8(text)
        ids = self._opening.encode(text)
        if self._spells(ids, data) or self._spells(ids, b" " + data):
            return ids
        return self._encode_exactly(text)

    def _encode_exactly(self, text: str) -> list[int]:
        """Natural where that is exact; else halved until the inexact parts are short."""
        data = _utf8(text)
        ids = self._continuing.encode(text)
        if self._spells(ids, data):
            return ids
        if len(text) <= _SHORT:
            return self._vocabulary.encode(data)
        middle = _word_boundary(text)
        return self._encode_exactly(text[:middle]) + self._encode_exactly(text[middle:])

    def _spells(self, ids: Sequence[int], data: bytes) -> bool:
        """Whether the ids are all text, and this one."""
        tokens = self._vocabulary.tokens
        if any(i >= len(tokens) or not tokens[i] for i in ids):
            return False
        return self._vocabulary.decode(ids) == data


class _PlainEncoder:
    """A tokenizer for which the control tokens are ordinary characters.

    It shares the model of ``backend``, and has the other components given.
    """

    def __init__(
        self, backend: Tokenizer, control: Mapping[str, int], components: Mapping[str, Any]
    ) -> None:
        self._tokenizer = Tokenizer.from_str(json.dumps(components))
        self._tokenizer.model = backend.model
        added = backend.get_added_tokens_decoder().items()
        kept = {i: token for i, token in added if token.content not in control}
        self._tokenizer.add_tokens(list(kept.values()))
        # The copy numbers added tokens anew where others are left out.
        self._renumbered = {
            new: i
            for i, token in kept.items()
            if (new := self._tokenizer.token_to_id(token.content)) != i
        }

    def encode(self, text: str) -> list[int]:
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        return [self._renumbered.get(i, i) for i in ids] if self._renumbered else ids


def _is_control(added: AddedToken) -> bool:
    """Whether an added token is no text: it is special, or spells a marker (``<think>``, ``[X]``).

    Runs of white space and whole words are text, and are drawn as such.
    """
    content = added.content.strip()
    edges_marked = content and not (content[0].isalnum() or content[-1].isalnum())
    return added.special or bool(edges_marked and re.search(r"\w", content))


def _components(backend: Tokenizer) -> dict[str, Any]:
    """The definition of a tokenizer without its model and its added tokens."""
    hollow = Tokenizer(models.BPE())
    for name in ("normalizer", "pre_tokenizer", "decoder"):
        if (component := getattr(backend, name)) is not None:
            setattr(hollow, name, component)
    return json.loads(hollow.to_str())


def _bytes_of_pieces(backend: Tokenizer) -> Callable[[str], bytes]:
    """How the tokenizer's pieces spell bytes.

    Raises:
        ModelError: if they do not.
    """
    components = _components(backend)
    kinds = {*_types(components["decoder"]), *_types(components["pre_tokenizer"])}
    if "ByteLevel" in kinds:
        added = {token.content for token in backend.get_added_tokens_decoder().values()}
        return lambda piece: piece.encode() if piece in added else _byte_level(piece)
    if "Metaspace" in kinds or json.dumps("▁") in json.dumps(components["decoder"]):
        return _sentencepiece
    raise ModelError(
        f"this {type(backend.model).__name__} tokenizer does not say which bytes its tokens are: "
        "it has neither a byte-level alphabet nor SentencePiece's spaces, so text cannot be "
        "reproduced exactly; use a model with byte-level BPE or a SentencePiece tokenizer"
    )


def _types(node: Any) -> Iterator[str]:
    """The type of a tokenizer component, and of all within it."""
    if isinstance(node, Mapping):
        if "type" in node:
            yield node["type"]
        for inner in node.values():
            yield from _types(inner)
    elif isinstance(node, list):
        for inner in node:
            yield from _types(inner)


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins: a printable Latin-1 character is itself, others follow 255."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(b): b for b in printable} | {chr(256 + n): b for n, b in enumerate(others)}


_BYTE_ALPHABET = _byte_alphabet()


def _byte_level(piece: str) -> bytes:
    if all(char in _BYTE_ALPHABET for char in piece):
        return bytes(_BYTE_ALPHABET[char] for char in piece)
    return piece.encode()


def _sentencepiece(piece: str) -> bytes:
    if found := re.fullmatch(r"<0x([0-9A-F]{2})>", piece):
        return bytes([int(found[1], 16)])
    return piece.replace("▁", " ").encode()


def _without_first_space(definition: Mapping[str, Any]) -> dict[str, Any]:
    """The definition of a tokenizer that does not treat a text's first word as if after a space."""
    return {
        **definition,
        "normalizer": _edited(definition["normalizer"]),
        "pre_tokenizer": _edited(definition["pre_tokenizer"]),
    }


def _edited(node: Any) -> Any:
    match node:
        case {"type": "Prepend"}:
            return None
        case {"type": "Metaspace"}:
            return {**node, "prepend_scheme": "never"}
        case {"type": "ByteLevel"}:
            return {**node, "add_prefix_space": False}
        case {"type": "Sequence", **rest}:
            edited = {
                key: [kept for inner in value if (kept := _edited(inner)) is not None]
                for key, value in rest.items()
                if isinstance(value, list)
            }
            return {**node, **edited}
    return node


def _word_boundary(text: str) -> int:
    """Where to halve a text: before the white space nearest to its middle, else in its middle."""
    middle = len(text) // 2
    starts = (found.start() for found in re.finditer(r"(?<=\S)\s", text))
    return min(starts, key=lambda start: abs(start - middle), default=middle)


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise VocabularyError(
            f"the text holds a lone surrogate, {text[error.start]!r} at position {error.start}, "
            "which has no UTF-8 and so no tokens"
        ) from error


def _map_strings(fn: Callable[[str], str], node: Any) -> Any:
    """Apply ``fn`` to every string within lists and mappings, keys included.

    Raises:
        ModelError: for what could hide a string.
    """
    if isinstance(node, str):
        return fn(node)
    if isinstance(node, Mapping):
        return {_map_strings(fn, key): _map_strings(fn, value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [_map_strings(fn, value) for value in node]
    if node is None or isinstance(node, bool | int | float):
        return node
    raise ModelError(
        f"chat messages are plain dicts, lists, strings and numbers; {node!r} "
        f"({type(node).__name__}) is not: convert it first"
    )


def _unused_character(data: Any) -> str:
    """A private-use character that the data do not contain."""
    used: set[str] = set()

    def collect(text: str) -> str:
        used.update(text)
        return text

    _map_strings(collect, data)
    return next(char for char in map(chr, range(0xF0000, 0xFFFFE)) if char not in used)


def _schema(tool: Any) -> dict[str, Any]:
    """A Python function as the JSON schema that templates read."""
    # Imported here since it is slow.
    from transformers.utils.chat_template_utils import get_json_schema

    return get_json_schema(tool)
