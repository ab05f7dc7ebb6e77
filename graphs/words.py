"""English-looking words: real ones of all lengths, and seeded inventions that follow English spelling.

Owns: the word list, and `words`, which draws from both.
Must not know: what reads them.
"""

from __future__ import annotations

import random

REAL = tuple(
    """
    a i o an as at be by do go he if in is it me my no of on or so to up us we ox ax
    act age air ant arm ash awe bee big box boy bud cat cow cry cup day dew dig dog dry ear eel egg elm end eye fan fig
    fly fog fox fun gem gnu gym hat hen hue ice ink ivy jam jar key kin lab lip log map mix mud nap nut oak oar owl pie
    able acid aunt bath beak bird blue calm cave chef clay deaf deer dove dusk echo edge envy fern fish folk frog gaol
    germ goat gust hawk heir high hymn idea iron itch jazz jury keen knee knot lamb lime loaf many mild moth myth newt
    apple badge beach bough breve chalk choir cloud cough curve debut dough eight feign fruit ghost glyph guard heart
    honey juice knife lunar maple night niece ocean onion pearl phlox queue quilt rhyme rough scent siege tulip weird
    aching answer autumn basalt borrow bridge castle cheese circus colour cousin daughter dialog double eleven expert
    forest furrow galaxy glance hollow island jacket jungle kettle knight laughs listen marble muscle nephew orange
    balance biscuit brought chamber chimney citizen dolphin earache enough examine feather fortune gesture gizzard
    harvest iceberg journey justice kitchen lantern machine migrate mustard neither obscure paisley quarrel rhubarb
    absolute avalanche bouquet building campaign carriage chlorine colonel daylight dinosaur elephant exercise
    fahrenheit favourite geography graphite hedgehog hierarchy homework illusion jealousy kangaroo language
    lieutenant measured adventure afternoon astronomy boulevard breakfast character chocolate dangerous dictionary
    education efficient
    fisherman gardening geometric handwriting hurricane imaginary knowledge landscape mathematics necessary neighbour
    ambassador background basketball calculator chimpanzee comparison democratic discussion electronic enterprise
    expression foundation generation impossible laboratory literature microphone motorcycle playground psychology
    accommodate agriculture celebration combination development electricity environment grandmother imagination
    legislature magnificent mischievous orchestrate photography Renaissance temperature transparent underground
    yesterday announcement approximately architecture choreography communication conversation demonstration encyclopedia
    entertainment headquarters hippopotamus international investigation kindergarten manufacturing multiplication
    acknowledgement characteristic circumnavigation commercialization compartmentalize constitutionality
    counterintuitive electromagnetism incomprehensible individualistic interdisciplinary internationalization
    misunderstanding otorhinolaryngologist responsibilities straightforward telecommunications transcontinental
    unconstitutional uncharacteristically antidisestablishmentarianism
    pneumonoultramicroscopicsilicovolcanoconiosis
    """.lower().split()
)
"""Real words, written down by hand: silent letters, doubled letters, borrowed spellings; one letter to forty-five."""

_ONSETS = (
    "- b bl br c ch cl cr d dr f fl fr g gl gr h j k l m n p ph pl pr qu r s sc sh sk sl sm sn sp st str sw t th tr"
)
_NUCLEI = "a e i o u a e i o u a e i o u ai au ea ee ei ie oa oi oo ou ow ue y"
_CODAS = "- - - - - - - - - - b ck ct d ft g ght l ll lt m mp n nd ng nt p r rd rk rm rn s sh sk ss st t tch th x zz"
_ENDINGS = "- - - - - - ed er ess ful ing ion ism ist ity ive less ly ment ness"
"""Parts of a spelling; "-" is none."""
_SYLLABLES = {1: 0.35, 2: 0.5, 3: 0.14, 4: 0.01}


def invented(count: int, seed: int = 0) -> list[str]:
    """Different spellings nobody has in a dictionary, or nearly nobody: one to four syllables, perhaps an ending."""
    rng = random.Random(seed)
    onsets, nuclei, codas, endings = (
        ["" if part == "-" else part for part in parts.split()] for parts in (_ONSETS, _NUCLEI, _CODAS, _ENDINGS)
    )
    found: dict[str, None] = {}
    while len(found) < count:
        syllables = rng.choices(list(_SYLLABLES), list(_SYLLABLES.values()))[0]
        stem = "".join(rng.choice(part) for _ in range(syllables) for part in (onsets, nuclei, codas))
        found[stem + rng.choice(endings)] = None
    return list(found)


def words(count: int, seed: int = 0) -> list[str]:
    """Words in random order: half of them real as far as there are enough, the rest invented; none twice."""
    rng = random.Random(seed)
    real = rng.sample(sorted(set(REAL)), min(count // 2, len(set(REAL))))
    taken = set(real)
    made = [word for word in invented(count, seed) if word not in taken][: count - len(real)]
    drawn = [*real, *made]
    rng.shuffle(drawn)
    return drawn
