// Register-blocked matrix products.
