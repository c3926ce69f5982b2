"""Keep freed memory for the next step.

glibc hands blocks above 32 MB back to the system when they are freed and asks for them anew: every large activation
of every step is then zeroed page by page, which costs more than the arithmetic on it (70 ms against 1 ms for a ReLU
over 12,000 × 1,024 numbers). Told to keep them, it does.
"""

import ctypes
import platform

MMAP_MAX, TRIM_THRESHOLD = -4, -1  # names in malloc.h
NEVER = 2**31 - 1


def keep_memory() -> bool:
    """Stop glibc from giving memory back for the rest of the process; whether that could be said."""
    if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc":
        return False
    library = ctypes.CDLL(None)
    return bool(library.mallopt(MMAP_MAX, 0) and library.mallopt(TRIM_THRESHOLD, NEVER))
