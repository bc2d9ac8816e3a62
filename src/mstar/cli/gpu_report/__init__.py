"""`mstar gpu-report`: one command that shows whether and how fast mstar runs on the GPUs of a machine."""

from mstar.cli.gpu_report.arguments import add_gpu_report

__all__ = ["add_gpu_report"]
