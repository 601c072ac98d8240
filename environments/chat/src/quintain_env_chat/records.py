"""Records to extract: kinds with their fields, the sentences that tell them, and the values.

Each kind has sentences for ``train``, one for ``dev`` and one for ``test``. Each list of names is
shared out in the same way, so that no name and no sentence of a held-out task was trained on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

SPLITS = ("train", "dev", "test")
TRAIN_SHARE = 6
"""Of eight words of a list, six are in ``train``, one is in ``dev`` and one in ``test``."""

WORDS: Mapping[str, Sequence[str]] = {
    "first": (
        "Anna Boris Carla David Elena Felix Greta Hugo Irene Jonas Karin Louis Maria Nils Olga Peter "
        "Rosa Simon Tanja Umar Vera Walter Xenia Yusuf Zoe Aaron Bella Cyril Diana Emil Freya Georg"
    ).split(),
    "last": (
        "Adler Berg Costa Duarte Engel Fischer Gruber Hansen Ito Jensen Keller Lopez Moreau Novak "
        "Olsen Patel Quist Rossi Sato Torres Ueda Vogel Weber Yilmaz"
    ).split(),
    "city": (
        "Oslo Lisbon Vienna Dublin Prague Madrid Athens Warsaw Berlin Geneva Helsinki Krakow London "
        "Munich Naples Porto Riga Sofia Tallinn Utrecht Venice Zurich Bergen Lyon"
    ).split(),
    "product": (
        "lamp chair kettle blanket mirror clock basket ladder bottle hammer candle pillow towel "
        "bucket vase rug"
    ).split(),
    "animal": (
        "dog cat parrot rabbit hamster pony turtle goat canary ferret lizard goose hen donkey mouse "
        "lamb"
    ).split(),
    "pet": (
        "Bella Rocky Luna Max Daisy Coco Milo Ruby Oscar Nala Toby Pearl Jasper Poppy Simba Willow"
    ).split(),
    "food": (
        "rice beans onions carrots tomatoes lentils mushrooms peppers apples walnuts cheese spinach "
        "potatoes garlic pumpkin barley"
    ).split(),
    "dish": (
        "soup stew salad curry pie omelette casserole risotto pancakes chili gratin paella dumplings "
        "lasagne noodles porridge"
    ).split(),
    "company": (
        "Acme Borealis Cobalt Delta Everest Fjord Granite Horizon Indigo Juniper Kestrel Lumen "
        "Meridian Nimbus Orion Pioneer"
    ).split(),
    "job": (
        "nurse baker pilot teacher plumber lawyer tailor driver editor farmer barber gardener cook "
        "painter welder chemist"
    ).split(),
    "topic": (
        "budget hiring safety travel marketing design training energy recycling parking housing "
        "insurance sales research logistics archives"
    ).split(),
    "subject": (
        "algebra biology chemistry drawing economics French geography history Italian Latin music "
        "physics poetry sculpture theatre zoology"
    ).split(),
    "weekday": ("Monday Tuesday Wednesday Thursday Friday Saturday").split(),
    "colour": ("red blue green black white yellow brown grey").split(),
}
OTHER_WORDS: Mapping[str, Sequence[str]] = {
    "first": "Oscar Yvonne Gloria Petra Hanna Igor Kemal Sonja Viktor Zeno Bruno Farid".split(),
    "last": "Garcia Okafor Young Zeman Dubois Horvat Kovacs Mendes Petrov Tanaka".split(),
    "city": "Florence Malmo Turin Antwerp Bilbao Cork Dresden Ghent Leeds Seville".split(),
    "product": "kite shovel canoe sofa drawer carpet teapot suitcase helmet guitar".split(),
}
"""Words that no split has: a held-out split has few of a list, such as two products."""
SHARED = {"weekday", "colour"}
"""Lists that all splits use whole."""

LISTS = {"foods": "food", "products": "product"}
"""Values that are lists, and the list of words that each draws from."""

MONTHS = (
    "January February March April May June July August September October November December"
).split()


@dataclass(frozen=True, kw_only=True)
class RecordKind:
    """A kind of record.

    Attributes:
        fields: the name of each key, and what its value is: a list of `WORDS`, or one of ``person``,
            ``number LOW HIGH``, ``price``, ``date``, ``time``, ``foods``, ``products``.
        train: sentences of ``train``, with the keys in braces.
        dev: the sentence of ``dev``.
        test: the sentence of ``test``.
    """

    fields: Mapping[str, str]
    train: tuple[str, ...]
    dev: str
    test: str

    @property
    def has_list(self) -> bool:
        """Whether a value is a list."""
        return not LISTS.keys().isdisjoint(self.fields.values())

    def sentences(self, split: str) -> tuple[str, ...]:
        """Return the sentences of *split*."""
        return {"train": self.train, "dev": (self.dev,), "test": (self.test,)}[split]


KINDS: tuple[RecordKind, ...] = (
    RecordKind(
        fields={"name": "person", "age": "number 18 90", "city": "city"},
        train=(
            "{name} is {age} years old and lives in {city}.",
            "{name}, aged {age}, comes from {city}.",
            "In {city} I met {name}, who is {age}.",
            "At {age}, {name} moved to {city}.",
            "Our neighbour from {city} is called {name} and turned {age} last week.",
        ),
        dev="{city} is the home of {name}, now {age} years of age.",
        test="A {age}-year-old called {name} wrote to us from {city}.",
    ),
    RecordKind(
        fields={"product": "product", "colour": "colour", "price": "price"},
        train=(
            "The {colour} {product} costs {price} euros.",
            "For {price} euros you get a {product} in {colour}.",
            "We sell a {product}, {colour}, at {price} euros.",
            "A {product} painted {colour} went for {price} euros.",
            "Price of the {product}: {price} euros, colour {colour}.",
        ),
        dev="She paid {price} euros for a {product} that is {colour}.",
        test="In the window stands a {colour} {product} with a tag of {price} euros.",
    ),
    RecordKind(
        fields={"guest": "person", "room": "number 100 499", "nights": "number 2 14"},
        train=(
            "{guest} stays in room {room} for {nights} nights.",
            "Room {room} is taken by {guest} for {nights} nights.",
            "For {nights} nights {guest} has room {room}.",
            "{guest} booked {nights} nights in room {room}.",
            "The guest in room {room} is {guest}, who leaves after {nights} nights.",
        ),
        dev="In room {room} sleeps {guest}, {nights} nights in all.",
        test="Keep room {room} for {guest}, please: {nights} nights.",
    ),
    RecordKind(
        fields={"pet": "pet", "animal": "animal", "age": "number 2 15", "owner": "person"},
        train=(
            "{owner} has a {animal} named {pet}, which is {age} years old.",
            "{pet} is a {animal} of {age} years and belongs to {owner}.",
            "The {animal} of {owner} is called {pet} and is {age}.",
            "For {age} years {owner} has kept {pet}, a {animal}, since it was born.",
            "{owner} brought {pet}, a {animal} aged {age}, to the doctor.",
        ),
        dev="A {animal} aged {age}, {pet}, lives with {owner}.",
        test="{owner} looks after {pet}; the {animal} is {age} years old.",
    ),
    RecordKind(
        fields={"topic": "topic", "date": "date", "time": "time", "room": "number 100 499"},
        train=(
            "The meeting about {topic} is on {date} at {time} in room {room}.",
            "On {date} at {time} we talk about {topic} in room {room}.",
            "Room {room} is booked for {topic} on {date} from {time}.",
            "Please come to room {room} on {date}, {time}, for the talk on {topic}.",
            "The subject at {time} on {date} is {topic}; the room is {room}.",
        ),
        dev="We discuss {topic} in room {room}, starting at {time} on {date}.",
        test="At {time} on {date} room {room} opens for everyone who cares about {topic}.",
    ),
    RecordKind(
        fields={"dish": "dish", "ingredients": "foods", "minutes": "number 10 90"},
        train=(
            "For the {dish} you need {ingredients}, and it takes {minutes} minutes.",
            "In {minutes} minutes you turn {ingredients} into a {dish}.",
            "The {dish} is made of {ingredients} and cooks for {minutes} minutes.",
            "Take {ingredients}; after {minutes} minutes the {dish} is ready.",
            "My {dish} with {ingredients} is done in {minutes} minutes.",
        ),
        dev="It takes {minutes} minutes to cook a {dish} from {ingredients}.",
        test="With {ingredients} in the pot, the {dish} needs {minutes} minutes.",
    ),
    RecordKind(
        fields={
            "subject": "subject",
            "teacher": "person",
            "day": "weekday",
            "time": "time",
            "pupils": "number 8 32",
        },
        train=(
            "{teacher} teaches {subject} on {day} at {time} to {pupils} pupils.",
            "On {day} at {time} {pupils} pupils have {subject} with {teacher}.",
            "A lesson in {subject} with {teacher} begins at {time} on {day} for {pupils} pupils.",
            "{pupils} pupils learn {subject} from {teacher} every {day} at {time}.",
            "The class in {subject}, {day} {time}, has {pupils} pupils and is led by {teacher}.",
        ),
        dev="Every {day}, {teacher} meets {pupils} pupils at {time} for {subject}.",
        test="At {time} each {day} it is {subject} for the {pupils} pupils of {teacher}.",
    ),
    RecordKind(
        fields={"customer": "person", "products": "products", "total": "price", "city": "city"},
        train=(
            "{customer} from {city} ordered {products} for {total} euros.",
            "We ship {products} to {customer} in {city}; the total is {total} euros.",
            "An order of {total} euros came from {customer} in {city}: {products}.",
            "To {city} go {products}, bought by {customer} for {total} euros.",
            "{customer} paid {total} euros for {products}, to be sent to {city}.",
        ),
        dev="For {total} euros {customer} bought {products} in {city}.",
        test="{city} is where {customer} wants {products} delivered, {total} euros in all.",
    ),
    RecordKind(
        fields={
            "name": "person",
            "job": "job",
            "company": "company",
            "city": "city",
            "salary": "number 20000 90000",
            "start": "date",
        },
        train=(
            "{name} starts as a {job} at {company} in {city} on {start} with {salary} euros a year.",
            "{company} in {city} hired {name} as a {job} for {salary} euros a year from {start}.",
            "From {start} {name} is a {job} for {company}, {city}, and earns {salary} euros a year.",
            "As a {job} {name} will earn {salary} euros at {company} in {city}, beginning {start}.",
            "The new {job} of {company} in {city} is {name}: {salary} euros, first day {start}.",
        ),
        dev="On {start} {company} welcomes {name}, a {job} in {city} paid {salary} euros.",
        test="{salary} euros a year is what {name} gets as a {job} at {company}, {city}, from {start}.",
    ),
)

ASIDES: Mapping[str, tuple[str, ...]] = {
    "train": (
        "It rained in {city} that day.",
        "{person} took the notes.",
        "The bus number {number} was late.",
        "There are {number} other entries on the list.",
        "{person} will call back next week.",
        "The file has {number} pages.",
    ),
    "dev": (
        "{person} asked {number} questions about it.",
        "A letter from {city} is still missing.",
    ),
    "test": ("{number} people read this before {person} did.", "The office in {city} is closed."),
}
"""Sentences beside the record, which say nothing of it."""

REQUESTS = (
    "Write this as JSON with the keys {keys}.",
    "Return a JSON object with the keys {keys}.",
    "Extract {keys} as JSON.",
)


def words_of(name: str, split: str) -> list[str]:
    """Return the words of the list *name* that *split* uses; with the split ``other`` those that none
    does, where there are such, else those of ``test``.
    """
    if split == "other" and name in OTHER_WORDS:
        return list(OTHER_WORDS[name])
    words = list(WORDS[name])
    if name in SHARED:
        return words
    place = {"dev": TRAIN_SHARE, "test": TRAIN_SHARE + 1, "other": TRAIN_SHARE + 1}
    if split == "train":
        return [word for i, word in enumerate(words) if i % 8 < TRAIN_SHARE]
    return [word for i, word in enumerate(words) if i % 8 == place[split]]


def value_of(kind: str, split: str, rng: Random) -> tuple[Any, str]:
    """Draw a value of *kind*, as in `RecordKind.fields`.

    Returns:
        The value in JSON, and the words of the sentence for it.
    """
    if kind in WORDS:
        word = rng.choice(words_of(kind, split))
        return word, word
    if kind == "person":
        first, last = (rng.choice(words_of(part, split)) for part in ("first", "last"))
        name = first if rng.random() < 0.5 else f"{first} {last}"
        return name, name
    if kind.startswith("number"):
        low, high = map(int, kind.split()[1:])
        number = rng.randint(low, high)
        return number, str(number)
    if kind == "price":
        cents = rng.randint(3, 99) * 100 + rng.choice((0, 0, 25, 50, 75))
        if cents % 100 == 0:
            return cents // 100, str(cents // 100)
        return cents / 100, f"{cents / 100:.2f}"
    if kind == "date":
        date = f"{rng.randint(1, 28)} {rng.choice(MONTHS)}"
        return date, date
    if kind == "time":
        time = f"{rng.randint(8, 20)}:{rng.choice(('00', '15', '30', '45'))}"
        return time, time
    words = rng.sample(words_of(LISTS[kind], split), 2)
    return words, " and ".join(words)


def listed(names: Sequence[str]) -> str:
    """Return *names* as an English list."""
    return f"{', '.join(names[:-1])} and {names[-1]}"
