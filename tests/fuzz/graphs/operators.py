"""The operators of random programs, by family. A line in a family is all that a new one needs."""

from layout_operators import CREATION, IN_PLACE, INDEXING, JOINS, VIEWS
from network_operators import MATMUL, NORMALIZE, WINDOWS
from number_operators import CASTS, DISCRETE, POINTWISE, REDUCTIONS

# How often a family is drawn.
FAMILIES = {
    "pointwise": (POINTWISE, 6),
    "discrete": (DISCRETE, 4),
    "cast": (CASTS, 3),
    "reduction": (REDUCTIONS, 4),
    "view": (VIEWS, 7),
    "join": (JOINS, 3),
    "creation": (CREATION, 1),
    "indexing": (INDEXING, 3),
    "matmul": (MATMUL, 2),
    "normalize": (NORMALIZE, 2),
    "window": (WINDOWS, 2),
    "in_place": (IN_PLACE, 4),
}
