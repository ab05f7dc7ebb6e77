"""When somebody speaks, in any number of recordings at once, told while they are being listened to.

python -m graphs export --model silero-vad -o out/zoo
python examples/listen.py out/zoo/silero-vad *.wav       (16 kHz, one channel, 16 bit; without files: made-up sounds)
"""

import sys
import wave
from pathlib import Path

import numpy as np

import lazybatch as lb


def chunks(path):
    """A recording as rows of 512 samples, -1..1, the last one filled with zeros."""
    with wave.open(path) as file:
        if (file.getframerate(), file.getnchannels(), file.getsampwidth()) != (16_000, 1, 2):
            sys.exit(f"{path}: expected 16 kHz, one channel, 16 bit")
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16)
    return np.pad(samples, (0, -len(samples) % 512)).reshape(-1, 512).astype(np.float32) / 32768


def listen(program, sounds):
    """Print where voices begin and end. sounds: name -> chunks."""
    # "continuous" joins at every step; the default policy needs a latency table to plan with, see lb.profile
    with lb.LazyBatcher(lb.load(program), policy="continuous", max_batch_size=8) as batcher:
        streams = {name: batcher.stream({"chunks": rows}) for name, rows in sounds.items()}
        for name, stream in streams.items():  # all run together; steps wait here until they are asked for
            speaking = False
            for k, step in enumerate(stream):
                if speaking != (step["probability"] > (0.35 if speaking else 0.5)):
                    speaking = not speaking
                    print(f"{name}: {k * 0.032:6.2f} s  {'speaks' if speaking else 'silent'}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    if len(sys.argv) > 2:
        listen(sys.argv[1], {path: chunks(path) for path in sys.argv[2:]})
    else:
        sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
        from graphs.silero import requests

        listen(sys.argv[1], {f"sound {k}": row["chunks"] for k, row in enumerate(requests(6, seed=1))})
