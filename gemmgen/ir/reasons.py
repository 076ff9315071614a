"""Why a statement stands where it does, as the comment above it in emitted text has it.

By barrier, number of groups, direction of registers, or what is read: what differs from one statement of a class to another. Reasons
that hold for all of a class are in its template.
"""

from __future__ import annotations

REASONS = {
    "role": {
        "consumer": "consumers: they multiply what was loaded, and store D",
        "producer": "producer: one thread loads stage after stage",
        "producer that copies": "producer: all threads copy A's rows into stages, and one has TMA load the rest; consumers read both",
    },
    "init": {
        "full": "one arrival, the producer's, and the bytes that it expects",
        "full with copies": "one arrival of the leader, for the bytes that it expects, and one of each producer warp, whose copies have come",
        "empty": "an arrival of each consumer warp that reads the stage",
        "turns": "an arrival of each warp of the warpgroup before",
        "partials_full": "one arrival, the finisher's, and the bytes that the others send",
        "partials_empty": "an arrival of each of the finisher's warps that add",
    },
    "wait": {
        "full": "Until TMA has filled the stage.",
        "full with copies": "Until what TMA loads is in the stage, and each producer warp has said that A's rows, which it copied, have come.",
        "empty": "Until consumers have released the stage; phase ^ 1: in the ring's first round it is free.",
        "partials_full": "Until the sums of all others have landed.",
        "partials_empty": "Until the finisher has added the last that was sent; ^ 1: at first its buffer is free.",
    },
    "wgmma": {
        0: "Until all wgmma are done: their sums are in registers, and the stage is read.",
        1: "Until all but the last group are done: their sums are in registers, and their stage is read.",
    },
    "registers": {
        "inc": "Consumers take the registers that the producer gives up.",
        "dec": "The producer needs few registers, and gives the rest to the CTA's pool.",
    },
    "stores": {
        True: "Until D's stores have read shared memory: what they read may be overwritten.",
        False: "Until all of D is written: shared memory must outlive its stores.",
    },
}
