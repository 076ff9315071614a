"""Why each planned mutant should be found: what the net that finds it says, as a regular expression.

A row may name its own (`Mutant.reason`); for the others it is here, or what any finding begins with. A net
that stops on nonsense never gives the planned reason.
"""

from __future__ import annotations

import re

from .mutant import Mutant

STOPPED = "stopped: "
ANY = rf"\A(?!{STOPPED})"
PROPERTY = r"\A\[P\d+ "  # a row that the proof finds, and that names none


def reason(m: Mutant) -> re.Pattern[str]:
    default = PROPERTY if m.expected == "P" else ANY
    return re.compile(m.reason or _OF_ROW.get(m.id.removeprefix("row "), default))


# By row, the property of gemmgen.check that is violated.
_PROPERTIES: dict[str, str] = {
    "P1": "3 16b 17 20 21 72 89 97c 97h 97i 102 102c 102g 105l 105m 113i 113l",
    "P2": (
        "1 2 2b 4 14 15 15b 16 18 21b 30a 30b 32 32b 45b 45d 50 53 55b 86 86b 88 88b "
        "95 95b 95c 95d 95f 96 96b 96c 96d 96e 96f 96h 96i 97e 98 98b 98c 98d 98f 104j "
        "102b 102d 102e 102f 105e 105g 105j 112 112d 112e 114b 113 113b 113c 113n 113o 113p 120g "
    ),
    "P3": "7 8 9 11 12 23b 87 87b 89b 89c",
    "P4": "10 88d",
    "P5": "19 22b 73 80 97 97b 97d 97g 97j 97k 112f 113j 113k",
    "P6": "26 27",
    "P7": "28 28b 29 96p 105i",
    "P8": "74h 113q",
    "P9": "35b 71b 71c 71d 74f 74g 75c 77e 92 96k 96l 96n 96q 97f 116 116b 116c 116d 116e 120f",
    "P10": (
        "38b 41 45 49 50b 55a 55c 77f 78 79 83 83b 84 85 85c 91e 91f 91g 95e 96g 96j 96m 96o "
        "101 101b 101c 101d 104 104b 104c 104d 104e 104f 104g 104h 104i 105 105b "
        "112c 114 112g 112h 112i 112j 112k 112l 112m 112n 112o "
        "113d 113e 113f 113g 113h 113m 117 117b 117c 117d 118 118b 118c 118d 120 120b 120c 120d 120e "
    ),
    "P11": "25 33 87c 91d",
    "P12": "35a",
    "P14": "66 66b 66c 78c 78e",
    "P15": "93 93c 93f",
}
_RULES = {
    "54b": r"\[smem-capacity\]",
    "55d": r"\[tma-box\]",
    "98e": "Peek stands outside ForK",
}
_OF_ROW = _RULES | {row: rf"\A\[{p} " for p, rows in _PROPERTIES.items() for row in rows.split()}
