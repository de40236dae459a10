"""Why a rank is late: what its phases, its host, its GPU and its node measured, each one file."""
