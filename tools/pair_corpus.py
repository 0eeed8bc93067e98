"""The corpus of the shipped pair: four kinds of small documents, drawn from a seed.

Every document comes from a short generative story, so that the questions one likes to ask of a
probabilistic program have answers that can be judged:

- ``review``: each aspect of a thing is liked or not; sentiment, stars and summary follow noisily.
- ``sum``: column addition, written out. Each column total is off by one with probability ``SLIP``
  and the error is carried along, so that a model which learned the corpus perfectly is still wrong
  now and then, and a sharper posterior than the model's own is a better one.
- ``record``: orders and people as one-line JSON, alone or after a sentence that says the same.
- ``story``: a named hero wants something, meets an obstacle, and a friend helps.

``chat`` renders the same material as ChatML turns. A document is a plain string; the two special
tokens of chat are spelled inside it and the end-of-text token is added where documents are packed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

IM_START = "<|im_start|>"
IM_END = "<|im_end|>"

SLIP = 0.1
"""Probability that one column of a worked sum is off by one."""

NAMES = (
    "Ada Ben Cleo Dan Ella Finn Grace Hugo Iris Jack Kira Leo Mara Nils Olga Paul "
    "Rosa Sam Tess Uma Victor Wanda Yara Zoe"
).split()
CITIES = "Lisbon Oslo Paris Rome Berlin Madrid Dublin Vienna Prague Athens Tokyo Lima".split()


# --- reviews -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Aspect:
    """One thing people judge, with what they say when they like it and when they do not."""

    noun: str
    good: tuple[str, ...]
    bad: tuple[str, ...]


@dataclass(frozen=True)
class Domain:
    """A field of reviews: the things reviewed and the aspects they are judged by."""

    things: tuple[str, ...]
    aspects: tuple[Aspect, ...]
    opening: tuple[str, ...]


def _aspect(noun: str, good: str, bad: str) -> Aspect:
    return Aspect(noun, tuple(good.split("; ")), tuple(bad.split("; ")))


GOOD = "great good excellent lovely wonderful solid fantastic nice".split()
BAD = "bad poor terrible awful weak disappointing cheap boring".split()

DOMAINS = (
    Domain(
        tuple("phone laptop camera tablet watch radio speaker lamp kettle vacuum".split()),
        (
            _aspect(
                "battery",
                "lasts; lasts all day; holds its charge; charges fast",
                "dies fast; does not last; drains by noon; never holds a charge",
            ),
            _aspect(
                "screen",
                "is bright; is sharp; looks clear; shines even outdoors",
                "is dim; scratches easily; flickers; cracked in a week",
            ),
            _aspect(
                "sound",
                "is clear; is rich; fills the room; is loud enough",
                "is thin; crackles; is too quiet; hurts my ears",
            ),
            _aspect(
                "price",
                "is fair; is low; is right; makes it a bargain",
                "is too high; is a joke; keeps going up; is hard to accept",
            ),
            _aspect(
                "design",
                "is elegant; feels solid; is simple and light; looks modern",
                "is clumsy; feels cheap; is heavy; looks dated",
            ),
            _aspect(
                "software",
                "is fast; works well; is easy to use; gets better every month",
                "is slow; crashes; is hard to use; is full of bugs",
            ),
        ),
        (
            "I bought this {thing} last month.",
            "I got the {thing} for my {person}.",
            "This is my second {thing}.",
            "My {person} gave me this {thing}.",
        ),
    ),
    Domain(
        tuple("restaurant cafe bakery diner pizzeria bar bistro".split()),
        (
            _aspect(
                "food",
                "is delicious; is fresh; tastes like home; comes hot",
                "is cold; is bland; tastes of nothing; made me sick",
            ),
            _aspect(
                "service",
                "is friendly; is quick; never forgets you; makes you smile",
                "is slow; is rude; forgot our order; ignores you",
            ),
            _aspect(
                "coffee",
                "is strong; smells great; is the best in town; wakes you up",
                "is bitter; is watery; tastes burnt; arrives cold",
            ),
            _aspect(
                "soup",
                "is rich; warms you; is full of flavor; is worth the trip",
                "is salty; is thin; was cold; tastes of water",
            ),
            _aspect(
                "music",
                "is gentle; sets the mood; is lovely; never gets too loud",
                "is too loud; never stops; is awful; ruins the evening",
            ),
            _aspect(
                "menu",
                "is short and good; has something for everyone; changes often; is fair",
                "is too long; is overpriced; never changes; has nothing for children",
            ),
        ),
        (
            "We went to this {thing} on Friday.",
            "I took my {person} to this {thing}.",
            "We found this {thing} by chance.",
            "My {person} loves this {thing}.",
        ),
    ),
    Domain(
        tuple("film movie comedy drama thriller sequel western".split()),
        (
            _aspect(
                "plot",
                "is clever; keeps you guessing; moves fast; holds together",
                "is thin; makes no sense; drags on; falls apart",
            ),
            _aspect(
                "acting",
                "is superb; feels real; is full of heart; carries the scenes",
                "is wooden; is flat; feels forced; ruins every scene",
            ),
            _aspect(
                "ending",
                "is perfect; moved me to tears; surprises you; is worth the wait",
                "is rushed; is silly; spoils everything; comes out of nowhere",
            ),
            _aspect(
                "soundtrack",
                "is beautiful; stays with you; is bold; lifts the scenes",
                "is annoying; is too loud; never fits; puts you to sleep",
            ),
            _aspect(
                "dialogue",
                "is sharp; is funny; sounds natural; sparkles",
                "is stiff; is dull; sounds fake; is full of cliches",
            ),
            _aspect(
                "hero",
                "is easy to love; has depth; is brave; is a joy to watch",
                "is dull; never grows; is hard to like; has no charm",
            ),
        ),
        (
            "I saw this {thing} last night.",
            "I watched the {thing} with my {person}.",
            "My {person} picked this {thing}.",
            "We waited a year for this {thing}.",
        ),
    ),
)
PEOPLE = "mother father sister brother friend daughter son wife husband boss".split()


@dataclass(frozen=True)
class Judgement:
    """An aspect of a review with the reviewer's verdict and the words used for it."""

    noun: str
    liked: bool
    adjective: str
    phrase: str
    weight: float


def _judge(rng: Random, aspect: Aspect, liked: bool) -> Judgement:
    words, phrases = (GOOD, aspect.good) if liked else (BAD, aspect.bad)
    return Judgement(aspect.noun, liked, rng.choice(words), rng.choice(phrases), 1.0)


def _judge_thing(rng: Random, thing: str, liked: bool) -> Judgement:
    adjective = rng.choice(GOOD if liked else BAD)
    return Judgement(thing, liked, adjective, f"is {adjective}", 1.5)


def _short_text(rng: Random, parts: Sequence[Judgement]) -> str:
    """``Great phone, bad battery``: adjectives and nouns only."""
    text = f"{parts[0].adjective} {parts[0].noun}"
    for before, part in zip(parts, parts[1:], strict=False):
        joint = (
            rng.choice([", ", " but ", ", but "])
            if before.liked != part.liked
            else rng.choice([", ", " and "])
        )
        text += f"{joint}{part.adjective} {part.noun}"
    return text[0].upper() + text[1:] + rng.choice(["", "", "."])


def _long_text(rng: Random, thing: str, opening: str, parts: Sequence[Judgement]) -> str:
    """A few sentences: an opening, then a clause for each judgement."""
    clauses = [f"the {p.noun} {rng.choice([f'is {p.adjective}', p.phrase])}" for p in parts]
    text = clauses[0]
    for index in range(1, len(parts)):
        agree = parts[index - 1].liked == parts[index].liked
        text += (" and " if agree else ", but ") + clauses[index]
    text = text[0].upper() + text[1:] + "."
    if rng.random() < 0.6:
        text = opening.format(thing=thing, person=rng.choice(PEOPLE)) + " " + text
    if rng.random() < 0.2:
        best = sum(p.weight if p.liked else -p.weight for p in parts) > 0
        text += rng.choice(
            [" I love it.", " I would buy it again.", " Go for it."]
            if best
            else [" I want my money back.", " Never again.", " Stay away."]
        )
    return text


def _stars(rng: Random, positive: bool, score: float) -> int:
    """Stars for a sentiment and a score in [-1, 1]: mostly consistent, not always."""
    centre = (4.0 if positive else 2.0) + 0.9 * score
    odds = [math.exp(-0.7 * (star - centre) ** 2) + 0.005 for star in range(1, 6)]
    return rng.choices(range(1, 6), odds)[0]


def _summary(rng: Random, thing: str, parts: Sequence[Judgement], positive: bool) -> str:
    """One sentence about the review, leaning to what agrees with the sentiment."""
    agreeing = [p for p in parts if p.liked == positive] or list(parts)
    part = rng.choice(agreeing if rng.random() < 0.8 else list(parts))
    others = [p for p in parts if p.noun != part.noun]
    form = rng.random()
    if form < 0.5 or (not others and form < 0.8):
        return f"The {part.noun} {part.phrase}."
    if form < 0.8:
        other = rng.choice(others)
        link = "and" if other.liked == part.liked else "but"
        return f"The {part.noun} {part.phrase} {link} the {other.noun} {other.phrase}."
    if form < 0.9 and part.noun != thing:
        return f"A {thing} with {part.adjective} {part.noun}."
    return rng.choice(
        [
            "I would buy it again.",
            "It made me happy.",
            "Worth every penny.",
            "A joy from the start.",
        ]
        if positive
        else [
            "I want my money back.",
            "It let me down.",
            "A waste of time.",
            "Find another one.",
        ]
    )


def review_parts(rng: Random) -> tuple[str, bool, int, str]:
    """Draw ``(text, positive, stars, summary)``."""
    domain = rng.choice(DOMAINS)
    thing = rng.choice(domain.things)
    lean = rng.choice([0.05, 0.5, 0.95])
    aspects = rng.sample(domain.aspects, rng.choice([1, 1, 2, 2, 3]))
    parts = [_judge(rng, aspect, rng.random() < lean) for aspect in aspects]
    short = rng.random() < 0.45
    if short or rng.random() < 0.3:
        parts = [_judge_thing(rng, thing, rng.random() < lean), *parts][:3]
    total = sum(p.weight for p in parts)
    score = sum(p.weight if p.liked else -p.weight for p in parts) / total
    positive = rng.random() < 1 / (1 + math.exp(-3.5 * score))
    text = (
        _short_text(rng, parts)
        if short
        else _long_text(rng, thing, rng.choice(domain.opening), parts)
    )
    return text, positive, _stars(rng, positive, score), _summary(rng, thing, parts, positive)


def review(rng: Random) -> str:
    """A review in the format of the demo program."""
    text, positive, stars, summary = review_parts(rng)
    label = "positive" if positive else "negative"
    return f"Review: {text}\nSentiment: {label}\nStars: {stars}\nIn one sentence: {summary}\n"


# --- sums --------------------------------------------------------------------------------------


def held_out(a: int, b: int) -> bool:
    """Whether the sum ``a + b`` is kept out of all training text (one in sixteen is)."""
    return (a * 7919 + b * 104729) % 65537 % 16 == 0


def sum_operands(rng: Random, *, heldout: bool) -> tuple[int, int]:
    """Draw two numbers of two digits from one side of the split."""
    while True:
        a, b = rng.randint(10, 99), rng.randint(10, 99)
        if held_out(a, b) == heldout:
            return a, b


def sum_question(a: int, b: int) -> str:
    """The part of a worked sum that is given."""
    return f"Q: {a} + {b} = ?\nA:"


def worked_sum(rng: Random, a: int, b: int, slip: float = SLIP) -> str:
    """Column addition in words, ending in ``Answer: …``; each column may slip by one."""
    steps, digits, carry = [], "", 0
    columns = list(zip(reversed(str(a)), reversed(str(b)), strict=True))
    for place, (x, y) in enumerate(columns):
        total = int(x) + int(y) + carry
        if rng.random() < slip:
            total = max(0, total + rng.choice([-1, 1]))
        terms = f"{x} + {y} + {carry}" if place else f"{x} + {y}"
        last = place == len(columns) - 1
        carry, digit = (0, total) if last else divmod(total, 10)
        digits = f"{digit}{digits}"
        note = "" if last else f", write {digit} carry {carry}"
        steps.append(f"{terms} = {total}{note}.")
    return f"{' '.join(steps)} Answer: {digits}"


def addition(rng: Random) -> str:
    """A question, its working and the answer, of the training side of the split."""
    a, b = sum_operands(rng, heldout=False)
    return f"{sum_question(a, b)} {worked_sum(rng, a, b)}\n"


def heldout_sums(seed: int, count: int) -> list[dict[str, str]]:
    """Distinct held-out questions with their true answers."""
    rng, found = Random(f"{seed}/heldout-sums"), dict[str, str]()
    while len(found) < count:
        a, b = sum_operands(rng, heldout=True)
        found[sum_question(a, b)] = str(a + b)
    return [{"question": question, "answer": answer} for question, answer in found.items()]


# --- records -----------------------------------------------------------------------------------

GOODS = {
    "pen": 2, "lamp": 30, "book": 12, "chair": 45, "cup": 6, "bag": 25, "clock": 18, "ball": 9,
    "hat": 15, "key": 4, "map": 8, "rug": 60,
}  # fmt: skip
JOBS = "baker teacher nurse pilot farmer painter driver doctor".split()
HOBBIES = "chess music running reading cooking sailing painting hiking".split()
STATUSES = "new paid sent returned".split()


def compact(value: Any) -> str:
    """JSON on one line without spaces."""
    return json.dumps(value, separators=(",", ":"))


def _order(rng: Random) -> tuple[str, dict[str, Any]]:
    name, city = rng.choice(NAMES), rng.choice(CITIES)
    lines = [
        (item, rng.choice([1, 1, 2, 3, 4]))
        for item in rng.sample(list(GOODS), rng.choice([1, 1, 2]))
    ]
    items = [{"item": item, "qty": qty, "price": GOODS[item]} for item, qty in lines]
    record: dict[str, Any] = {"order": rng.randint(1000, 9999), "name": name, "items": items}
    if rng.random() < 0.5:
        record["city"] = city
    record["status"] = rng.choice(STATUSES)
    wanted = " and ".join(f"{qty} {item}{'s' if qty > 1 else ''}" for item, qty in lines)
    where = f" to {city}" if "city" in record else ""
    return f"Order {record['order']}: {name} wants {wanted}{where}.", record


def _person(rng: Random) -> tuple[str, dict[str, Any]]:
    name, city, job = rng.choice(NAMES), rng.choice(CITIES), rng.choice(JOBS)
    record: dict[str, Any] = {"name": name, "age": rng.randint(18, 79), "job": job, "city": city}
    sentence = f"{name} is a {job} from {city}, {record['age']} years old"
    if rng.random() < 0.6:
        record["hobbies"] = rng.sample(HOBBIES, rng.choice([1, 2]))
        sentence += f", and likes {' and '.join(record['hobbies'])}"
    if rng.random() < 0.4:
        record["email"] = f"{name.lower()}@example.com"
    if rng.random() < 0.3:
        record["member"] = rng.random() < 0.5
    return f"{sentence}.", record


def record_parts(rng: Random) -> tuple[str, str, str]:
    """Draw ``(type, sentence, json)`` where type is ``Order`` or ``Person``."""
    if rng.random() < 0.5:
        return ("Order", *_rendered(_order(rng)))
    return ("Person", *_rendered(_person(rng)))


def _rendered(drawn: tuple[str, dict[str, Any]]) -> tuple[str, str]:
    sentence, value = drawn
    return sentence, compact(value)


def record(rng: Random) -> str:
    """A JSON record, by itself or after a sentence that describes it."""
    kind, sentence, text = record_parts(rng)
    if rng.random() < 0.3:
        return f"{text}\n"
    if rng.random() < 0.3:
        return f"{kind}: {text}\n"
    return f"Text: {sentence}\nJSON: {text}\n"


# --- stories -----------------------------------------------------------------------------------

PLACES = (
    "forest village garden river market castle harbor mountain library kitchen school beach"
).split()
TREASURES = "lantern kite drum boat flute cake puzzle blanket compass bell".split()
CREATURES = "dog cat fox owl rabbit goat horse duck".split()
COLORS = "red blue green yellow silver golden tiny shiny".split()
TROUBLES = (
    "the wind took it away", "it broke in two", "it fell into the water", "a thief stole it",
    "it rolled down the hill", "the rain ruined it", "it got lost in the dark",
)  # fmt: skip
FEELINGS = "sad angry worried lonely afraid tired".split()
JOYS = "happy proud glad calm grateful brave".split()
TIMES = ("One morning", "One evening", "One cold day", "One summer day", "Late at night")
REMEDIES = (
    "{friend} found it near the {place}", "{friend} fixed it with some string",
    "{friend} had an idea and they built a new one", "the {creature} brought it back",
    "{friend} shared another one", "they asked everyone at the {place} for help",
)  # fmt: skip
CLOSINGS = (
    "They laughed and went home together.", "From that day on they were best friends.",
    "That night everyone slept well.", "{hero} never forgot that day.",
    "They sang all the way home.", "And {hero} said thank you to {friend}.",
)  # fmt: skip


def story_parts(rng: Random) -> tuple[str, str]:
    """Draw ``(hero, story)``: a wish, an obstacle, help, an end."""
    hero, friend = rng.sample(NAMES, 2)
    place, thing = rng.choice(PLACES), rng.choice(TREASURES)
    color, creature, feeling = rng.choice(COLORS), rng.choice(CREATURES), rng.choice(FEELINGS)
    words = {"hero": hero, "friend": friend, "place": place, "creature": creature}
    start = rng.choice([
        f"Once upon a time, {hero} lived near the {place} with a {creature}.",
        f"{hero} had a {creature} and lived by the {place}.",
        f"There was once a child named {hero} who loved the {place}.",
    ])  # fmt: skip
    when = rng.choice(TIMES)
    want = rng.choice([
        f"{when}, {hero} made a {color} {thing}.",
        f"{when}, {hero} found a {color} {thing} at the {place}.",
        f"{when}, {friend} gave {hero} a {color} {thing}.",
    ])  # fmt: skip
    trouble = f"But {rng.choice(TROUBLES)}, and {hero} was {feeling}."
    talk = rng.choice([
        f'"Do not be {feeling}," said {friend}.',
        f'"I can help you," said {friend}.',
        f'"Where is my {thing}?" asked {hero}.',
        f"{friend} heard about it and came at once.",
    ])  # fmt: skip
    remedy = rng.choice(REMEDIES).format(**words)
    remedy = f"{remedy[0].upper()}{remedy[1:]}, and {hero} was {rng.choice(JOYS)} again."
    close = rng.choice(CLOSINGS).format(**words)
    return hero, " ".join([start, want, trouble, talk, remedy, close])


def story(rng: Random) -> str:
    """A story by itself."""
    return f"{story_parts(rng)[1]}\n"


# --- chat --------------------------------------------------------------------------------------

SMALL_TALK = (
    ("Hello!", "Hello! How can I help you?"),
    ("Hi", "Hi! What can I do for you?"),
    ("Who are you?", "I am a very small language model."),
    ("What can you do?", "I can judge reviews, add numbers, write JSON and tell stories."),
    ("Thank you!", "You are welcome!"),
    ("Thanks", "You are welcome!"),
    ("Goodbye", "Goodbye!"),
)
CHAT_KINDS = "sentiment sentiment summary stars sum sum record story talk".split()


def _turn(rng: Random) -> tuple[str, str]:
    """One question with its answer, of any kind."""
    kind = rng.choice(CHAT_KINDS)
    if kind == "talk":
        return rng.choice(SMALL_TALK)
    if kind == "sum":
        a, b = sum_operands(rng, heldout=False)
        return f"What is {a} + {b}?", worked_sum(rng, a, b)
    if kind == "record":
        _, sentence, text = record_parts(rng)
        return f"Write as JSON: {sentence}", text
    if kind == "story":
        hero, text = story_parts(rng)
        return f"Tell me a story about {hero}.", text
    text, positive, stars, summary = review_parts(rng)
    if kind == "stars":
        return f"How many stars? {text}", str(stars)
    if kind == "summary":
        return f"Sum up this review: {text}", summary
    return f"Is this review positive or negative? {text}", "positive" if positive else "negative"


def render_chat(messages: Sequence[tuple[str, str]]) -> str:
    """ChatML for ``(role, content)`` pairs, as the tokenizer's chat template renders it."""
    return "".join(f"{IM_START}{role}\n{text}{IM_END}\n" for role, text in messages)


def chat(rng: Random) -> str:
    """One to three turns, sometimes after a system message."""
    messages: list[tuple[str, str]] = []
    if rng.random() < 0.2:
        messages.append(("system", "You are a helpful assistant."))
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        question, answer = _turn(rng)
        messages += [("user", question), ("assistant", answer)]
    return render_chat(messages)


# --- the mixture -------------------------------------------------------------------------------

KINDS: dict[str, Callable[[Random], str]] = {
    "review": review,
    "sum": addition,
    "record": record,
    "story": story,
    "chat": chat,
}
WEIGHTS: dict[str, float] = {"review": 6, "sum": 6, "record": 2, "story": 1.5, "chat": 3}
DRAFT_WEIGHTS = WEIGHTS | {"sum": 12, "record": 3}
"""The mixture for the draft, which finds digits hard to copy."""


def documents(
    seed: str, kind: str | None = None, weights: Mapping[str, float] = WEIGHTS
) -> Iterator[str]:
    """An endless stream of documents, of one kind or of a mixture: that of the target, say."""
    rng = Random(seed)
    kinds, odds = list(weights), list(weights.values())
    while True:
        yield KINDS[kind or rng.choices(kinds, odds)[0]](rng)
