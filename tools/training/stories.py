"""Short English stories from a small grammar: text that a tiny model can learn to write well.

A story keeps its hero, friend, village and thing through to the end. Villages and some names are made up, so
predicting their later mentions needs memory of the story, which an n-gram model lacks. Every story is a function
of the generator's state alone.
"""

import random


def _words(text: str, separator: str = " ") -> tuple[str, ...]:
    return tuple(text.split(separator))


BOYS = _words("Ben David Felix Hugo Jonas Leo Noah Paul Simon Oscar Victor Edgar Martin Theo Walter Karim")
GIRLS = _words("Anna Clara Emma Grace Ida Kate Mia Olga Rosa Tara Judith Helen Yasmin Nora Sophie Wilma")
ANIMALS = _words(
    "fox owl bear cat dog duck frog goat hare horse mole mouse otter pony robin seal swan turtle "
    "wolf badger beaver donkey falcon hedgehog lizard magpie parrot penguin rabbit squirrel"
)
MOODS = _words(
    "brave curious gentle happy quiet clever cheerful patient lonely proud shy stubborn honest "
    "hungry lazy young nervous polite sleepy thoughtful"
)
COLOURS = _words("red blue green yellow white black golden silver grey purple")
MATERIALS = _words("wooden brass glass paper stone velvet leather copper tin woollen")
OBJECTS = _words(
    "kite key boat scarf lamp bell book map marble basket umbrella clock drum flute ring compass "
    "kettle ladder mirror puppet button feather lantern candle trumpet blanket"
)
PLACES = _words(
    "forest|mill|harbour|library|garden|river bank|market|hill|railway station|beach|castle|bakery|"
    "bridge|lighthouse|school|orchard|barn|museum|workshop|cave",
    "|",
)
ONSETS = _words("b br d dr f fl g gr h k kl l m n p pr r s st t tr v w z")
NUCLEI = _words("a e i o u ai ea ou")
CODAS = _words("ck ld lm n nd ng r rk rn sh ss t th x")
ENDINGS = _words("moor ton field stead ham wick dale ford burg haven")
TIMES = (
    "One morning", "One evening", "On a rainy day", "Early in spring", "Late in autumn", "After the storm",
    "The next day", "In the middle of the night", "During the long summer", "When the snow had melted",
)  # fmt: skip
TROUBLES = (
    "the wind carried {it} away", "{it} fell into the water", "{it} was gone", "{it} broke in two",
    "a thief ran off with {it}", "{it} got stuck in a tree", "somebody had hidden {it}",
    "a wave washed {it} out to sea",
)  # fmt: skip
FEELINGS = _words("sad worried surprised upset angry ashamed confused afraid")
HELPS = (
    "looked everywhere until they found {it}", "asked everyone in {village} about {it}",
    "followed the tracks to {village} and found {it}", "worked all day in {village} to bring {it} back",
    "searched the {place} and discovered {it} under some leaves", "made a clever plan to get {it} back",
)  # fmt: skip
SPEECHES = (
    '"Do not worry, {hero}," said {friend}, "I will help you."', '"Let us go back to {village}," said {friend}.',
    '"{friend}, have you seen my {bare}?" asked {hero}.', '"We must not give up, {hero}," whispered {friend}.',
    '{friend} laughed and said, "{village} is full of surprises."',
)  # fmt: skip
ENDS = (
    "{hero} thanked {friend} and they walked home to {village} together.",
    "From that day on {hero} and {friend} were the best friends in {village}.",
    "{hero} smiled and shared some bread with {friend} of {village}.", "That night {hero} slept well in {village}.",
    "{hero} of {village} never forgot how {friend} had helped.", "And the {bare} stayed in {village} for many years.",
)  # fmt: skip


def invented(rng: random.Random, ending: bool) -> str:
    """A made-up name of a person, or with `ending` of a village."""
    syllable = rng.choice(ONSETS) + rng.choice(NUCLEI) + rng.choice(CODAS)
    return (syllable + (rng.choice(ENDINGS) if ending else rng.choice(NUCLEI) + rng.choice(CODAS))).capitalize()


def thing(rng: random.Random) -> str:
    """An object with its article."""
    return f"a {rng.choice(COLOURS + MATERIALS)} {rng.choice(OBJECTS)}"


def subject(rng: random.Random) -> str:
    """What a user may ask a story about: an animal, a person or a thing."""
    return rng.choice((f"a {rng.choice(ANIMALS)}", rng.choice(BOYS + GIRLS), thing(rng)))


def story(rng: random.Random, about: str) -> str:
    """A story of five to eight sentences whose hero or thing is `about` (a value of `subject`)."""
    word = about.removeprefix("a ")
    hero, kind, found = invented(rng, ending=False), word, thing(rng)
    if about in BOYS + GIRLS:
        hero, kind = about, "boy" if about in BOYS else "girl"
    elif word not in ANIMALS:
        kind, found = rng.choice(ANIMALS), about
    friend = rng.choice([name for name in BOYS + GIRLS if name != about])
    if rng.random() < 0.7:
        friend = invented(rng, ending=False)
    village, place = invented(rng, ending=True), rng.choice(PLACES)
    bare = found.removeprefix("a ")
    words = {"hero": hero, "friend": friend, "village": village, "place": place, "bare": bare, "it": f"the {bare}"}
    opening = rng.choice(("There once was a {} who lived in {}.", "Long ago a {} lived near {}.", "A {} came to {}."))
    parts = [opening.format(f"{rng.choice(MOODS)} {kind} named {hero}", village)]
    finding = rng.choice(("found {} at the {}", "bought {} at the {}", "was given {} at the {}", "saw {} at the {}"))
    parts.append(f"{rng.choice(TIMES)}, {hero} {finding.format(found, place)}.")
    meeting = rng.choice(
        ("{hero} showed the {bare} to {friend} of {village}.", "{hero} took the {bare} to {village} and met {friend}.")
    )
    parts.append(_capital(meeting.format(**words)))
    parts.append(f"But then {rng.choice(TROUBLES).format(**words)}, and {hero} was {rng.choice(FEELINGS)}.")
    if rng.random() < 0.7:
        parts.append(rng.choice(SPEECHES).format(**words))
    parts.append(_capital(f"{hero} and {friend} {rng.choice(HELPS).format(**words)}."))
    parts.append(_capital(rng.choice(ENDS).format(**words)))
    return " ".join(parts)


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
