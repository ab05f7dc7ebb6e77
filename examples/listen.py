"""When somebody speaks, in any number of recordings at once, told while they are being listened to.

python -m graphs export --model silero-vad -o out/zoo    (makes the folder of the program, which is always needed)
python examples/listen.py out/zoo/silero-vad *.wav       (16 kHz, one channel, 16 bit)
python examples/listen.py out/zoo/silero-vad             (without recordings: six made-up sounds)
"""

import asyncio
import sys
import wave
from pathlib import Path

import numpy as np

import lazybatch as lb

RATE, CHUNK = 16_000, 512


def refuse(words):
    """End with one line."""
    print(words, file=sys.stderr)
    sys.exit(2)


def chunks(path):
    """A recording as rows of 512 samples, -1..1, the last one filled with zeros."""
    try:
        with wave.open(path) as file:
            if (file.getframerate(), file.getnchannels(), file.getsampwidth()) != (RATE, 1, 2):
                refuse(f"{path}: expected 16 kHz, one channel, 16 bit")
            samples = np.frombuffer(file.readframes(file.getnframes()), np.int16)
    except (OSError, EOFError, ValueError, wave.Error) as error:
        why = getattr(error, "strerror", None) or str(error) or "it is cut off"
        refuse(f"{path}: no recording that can be read ({why})")
    if not len(samples):
        refuse(f"{path}: holds no sound")
    return np.pad(samples, (0, -len(samples) % CHUNK)).reshape(-1, CHUNK).astype(np.float32) / 32768


async def follow(name, steps):
    """Print where voices begin and end in one recording, as its steps come."""
    speaking, heard, chunk = False, False, 0
    async for step in steps:
        if speaking != (step["probability"] > (0.35 if speaking else 0.5)):
            speaking, heard = not speaking, True
            print(f"{name}: {chunk * CHUNK / RATE:6.2f} s  {'speaks' if speaking else 'silent'}", flush=True)
        chunk += 1
    if speaking:
        print(f"{name}: {chunk * CHUNK / RATE:6.2f} s  ends while somebody speaks", flush=True)
    if not heard:
        print(f"{name}: no voice", flush=True)


async def listen(program, sounds):
    """Follow all recordings at once. sounds: name -> chunks."""
    # "continuous" joins at every step; the default policy needs a latency table to plan with, see lb.profile
    with lb.LazyBatcher(lb.load(program), policy="continuous", max_batch_size=8) as batcher:
        streams = {name: batcher.astream({"chunks": rows}) for name, rows in sounds.items()}
        await asyncio.gather(*(follow(name, stream) for name, stream in streams.items()))


def main(program=None, *recordings):
    """Check the recordings, then listen."""
    if program is None:
        refuse("usage: python examples/listen.py PROGRAM [WAV ...]; the top of the file says how to make the program")
    sounds = {path: chunks(path) for path in recordings}
    if not recordings:
        sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
        from graphs.silero import requests

        sounds = {f"sound {k}": row["chunks"] for k, row in enumerate(requests(6, seed=1))}
    try:
        asyncio.run(listen(program, sounds))
    except lb.LazyBatchError as error:
        refuse(f"{program}: no program that listens ({error})")


if __name__ == "__main__":
    main(*sys.argv[1:])
