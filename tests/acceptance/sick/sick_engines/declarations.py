"""Engine `torch`, except that the process called engine-bad accepts requests and never answers."""

from dataclasses import replace

from rollart_hpc.engines.torch.backend import BACKEND

ENGINE = replace(BACKEND, kind="sick", make="sick_engines.engine:make", imports=("sick_engines.engine",))
