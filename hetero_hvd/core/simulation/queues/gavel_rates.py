"""Rates of real models on unlike GPUs, as Gavel's authors published them.

From `scheduler/simulation_throughputs.json` of github.com/stanford-futuredata/gavel (commit
c4fa400, MIT licence; Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep
Learning Workloads", OSDI 2020): steps per second of one device, and the seconds that a step takes
longer for each doubling of the devices, mean over the rates on 2, 4 and 8 of them, at least 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

GAVEL_KINDS = ("v100", "p100", "k80")

GAVEL_RATES: Mapping[str, tuple[tuple[float, float, float], tuple[float, float, float] | None]]
GAVEL_RATES = MappingProxyType(
    {
        "resnet-18-16": ((32.35, 35.87, 4.795), (0.0, 0.007809, 0.02305)),
        "resnet-18-32": ((29.95, 35.83, 7.176), (0.0, 0.007663, 0.01525)),
        "resnet-18-64": ((24.09, 22.3, 7.052), (0.0, 0.004968, 0.01837)),
        "resnet-18-128": ((17.99, 11.68, 1.807), (0.008849, 0.0003238, 0.005845)),
        "resnet-18-256": ((10.3, 7.723, 0.8856), (0.01755, 0.008238, 0.03144)),
        "resnet-50-16": ((11.4, 9.053, 2.301), (0.05519, 0.01517, 0.03495)),
        "resnet-50-32": ((7.787, 4.888, 1.237), (0.06843, 0.005788, 0.04242)),
        "resnet-50-64": ((4.395, 2.619, 0.619), (0.067, 0.0006694, 0.0113)),
        "resnet-50-128": ((2.497, 1.584, 0.3472), (0.0943, 0.06359, 0.0943)),
        "transformer-16": ((11.06, 9.537, 5.467), (0.03747, 0.04455, 0.09546)),
        "transformer-32": ((10.62, 7.869, 3.507), (0.03559, 0.05235, 0.104)),
        "transformer-64": ((8.618, 5.092, 1.752), (0.02289, 0.05916, 0.1004)),
        "transformer-128": ((5.446, 3.074, 0.9816), (0.02981, 0.07315, 0.1814)),
        "transformer-256": ((1.595, 1.678, 0.4583), (0.0794, 0.0856, 0.1965)),
        "a3c": ((7.176, 5.681, 3.439), None),
        "lm-5": ((109.2, 90.78, 25.49), (0.004525, 0.01464, 0.02329)),
        "lm-10": ((81.65, 77.08, 23.79), (0.003535, 0.01456, 0.02383)),
        "lm-20": ((64.74, 58.17, 17.14), (0.003398, 0.01492, 0.02553)),
        "lm-40": ((45.24, 35.77, 11.5), (0.003186, 0.01425, 0.03795)),
        "lm-80": ((28.24, 21.16, 6.054), (0.002593, 0.01489, 0.03777)),
        "recommendation-512": ((23.32, 48.88, 32.86), None),
        "recommendation-1024": ((13.28, 30.74, 20.05), None),
        "recommendation-2048": ((7.47, 16.6, 10.44), None),
        "recommendation-4096": ((3.906, 8.897, 5.3), None),
        "recommendation-8192": ((2.842, 5.548, 2.699), None),
        "cyclegan": ((4.426, 2.403, 0.5048), None),
    }
)
"""Model and its batch size to steps per second on each of `GAVEL_KINDS`, and to the seconds for
each
doubling; None: the model was measured on one device only, and is trained on one."""
