"""The public conformance suite: does an implementation of `read` mean the same?

    pytest --pyargs reluformer.conformance                                # what is built in
    pytest --pyargs reluformer.conformance --impl my_package:my_function  # yours

`my_function` takes the arguments of `reluformer.read` except `impl`. Where it cannot do a
rule or an option it raises `reluformer.errors.ArgumentError`, and the case is skipped.
A built-in implementation gets only the cases that it can read, and refusing one of them is a failure.
The suite compares outputs, statistics and gradients with the reference in float64, and
checks the properties that no rule may lose.
"""
