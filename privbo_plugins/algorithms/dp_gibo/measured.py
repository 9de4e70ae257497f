"""Methods as good as the best measured, the best first, by d and n mu.

Written by ``python -m benchmarks.map --write-table``.
"""

AS_GOOD: dict[int, dict[int, tuple[str, ...]]] = {
    1: {
        30: ("dp-gibo",),
        90: ("dp-gibo", "means-gp"),
        100: ("dp-gibo",),
        300: ("dp-gibo", "means-tpe", "means-cma"),
        900: ("means-tpe", "means-cma", "dp-gibo"),
        1000: ("means-tpe", "means-cma", "dp-gibo"),
        3000: ("means-tpe", "means-cma", "dp-gibo", "means-gp"),
        10000: ("means-tpe", "dp-gibo", "means-cma"),
        30000: ("dp-gibo", "means-tpe", "means-cma"),
        100000: ("dp-gibo", "means-tpe", "means-cma"),
        300000: ("dp-gibo", "means-tpe", "means-cma"),
    },
    2: {
        30: ("dp-gibo",),
        90: ("dp-gibo",),
        100: ("dp-gibo",),
        300: ("dp-gibo", "means-tpe", "means-cma"),
        900: ("dp-gibo", "means-tpe", "means-cma"),
        1000: ("dp-gibo", "means-cma", "means-tpe"),
        3000: ("dp-gibo", "means-tpe", "means-cma", "means-gp"),
        10000: ("dp-gibo", "means-cma", "means-tpe"),
        30000: ("dp-gibo", "means-tpe", "means-cma"),
        100000: ("means-tpe", "dp-gibo", "means-cma"),
        300000: ("means-tpe", "means-cma", "dp-gibo"),
    },
    4: {
        30: ("dp-gibo",),
        90: ("dp-gibo",),
        100: ("dp-gibo",),
        300: ("dp-gibo",),
        900: ("dp-gibo",),
        1000: ("dp-gibo",),
        3000: ("dp-gibo",),
        10000: ("means-tpe", "dp-gibo"),
        30000: ("means-tpe",),
        100000: ("means-tpe",),
        300000: ("means-tpe",),
    },
    8: {
        30: ("dp-gibo",),
        90: ("dp-gibo",),
        300: ("dp-gibo",),
        900: ("dp-gibo",),
        3000: ("dp-gibo",),
        100000: ("dp-gibo",),
        300000: ("dp-gibo",),
    },
    15: {
        30: ("dp-gibo",),
        90: ("dp-gibo",),
        300: ("dp-gibo",),
        900: ("dp-gibo",),
        3000: ("dp-gibo",),
        100000: ("dp-gibo",),
        300000: ("dp-gibo",),
    },
    32: {
        100: ("dp-gibo",),
        3000: ("dp-gibo",),
        100000: ("dp-gibo",),
    },
    64: {
        100: ("dp-gibo",),
        3000: ("dp-gibo",),
        100000: ("dp-gibo",),
    },
}
