from pathlib import Path

from setuptools import find_packages, setup

setup(
    name="hetero_hvd",
    version="0.1.0",
    description="Train one PyTorch model on machines of unequal speed, through Elastic Horovod",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    python_requires=">=3.11,<3.15",
    packages=find_packages(include=["hetero_hvd", "hetero_hvd.*"]),
    package_data={
        "hetero_hvd": [
            "py.typed",
            "run/web/page/*",
            "run/reports/page/*",
            "monitoring/rules.yml",
            "worker/site/*.py",
        ]
    },
    install_requires=[
        "cryptography>=42",
        "msgspec>=0.18",
        "numpy>=1.24",
        "nvidia-ml-py>=12",
        "packaging>=22",
        "prometheus-client>=0.23",
        "psutil>=5.9",
        "pyyaml>=6.0",
        "rich>=13",
        "starlette>=0.40",
        "textual>=1.0",
        "uvicorn>=0.30",
        "websockets>=17",
        "zeroconf>=0.130",
    ],
    extras_require={
        "train": ["horovod==0.28.1", "torch>=2.7"],
        "demo": ["scikit-learn>=1.3"],
        "plots": ["matplotlib>=3.8"],
        "parquet": ["pyarrow>=15"],
        "tensorboard": ["tensorboard>=2.15"],
        "wandb": ["wandb>=0.16"],
        "mlflow": ["mlflow-skinny>=2.10"],
        "fuzz": ["atheris>=2.3"],
        "dev": [
            "coverage>=7.10",
            "hypothesis>=6.90",
            "import-linter>=2.0",
            "matplotlib>=3.8",
            "mypy>=1.8",
            "pyarrow>=15",
            "pytest>=8,<9.2",  # pytest-xdist 3.8 makes its groups with what 9.2 has no more
            "pytest-timeout>=2.3",
            "pytest-xdist>=3.6",
            "ruff>=0.5",
            "scikit-learn>=1.3",
            "tensorboard>=2.15",
            "types-PyYAML",
            "types-psutil",
        ],
    },
    entry_points={"console_scripts": ["hetero-hvd = hetero_hvd.cli:main"]},
)
