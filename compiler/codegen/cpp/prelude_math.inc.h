// Vector math.
