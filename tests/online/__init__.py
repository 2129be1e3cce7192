"""Tests of programs that are written while a policy decides."""
