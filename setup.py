from pathlib import Path

from setuptools import find_packages, setup

DOCS = ["furo>=2025.9", "myst-parser>=4", "sphinx>=8"]
"""What makes a site of the pages: `scripts/docs`."""

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
            "hub/http/page/*",
            "run/page/*",
            "run/web/page/*",
            "run/reports/page/*",
            "deploy/Dockerfile*",
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
        "shtab>=1.13",
        "starlette>=0.40",
        "textual>=1.0",
        "uvicorn>=0.30",
        "websockets>=17",
        "zeroconf>=0.130",
    ],
    extras_require={
        "train": ["horovod==0.28.1", "torch>=2.7"],
        "huggingface": ["accelerate>=1.1", "transformers>=5.23"],
        "lightning": ["lightning>=2.6"],
        "ray": ["ray>=2.60"],
        "demo": ["scikit-learn>=1.3"],
        "plots": ["matplotlib>=3.8"],
        "parquet": ["pyarrow>=15"],
        "tensorboard": ["tensorboard>=2.15"],
        "wandb": ["wandb>=0.16"],
        "mlflow": ["mlflow-skinny>=2.10"],
        "postgresql": ["psycopg[binary]>=3.1"],
        "redis": ["redis>=5"],
        "data": ["aiohttp>=3.9", "fsspec>=2024.12", "huggingface_hub>=0.27", "pillow>=10"],
        "s3": ["s3fs>=2024.12"],
        "gs": ["gcsfs>=2024.12"],
        "fuzz": ["atheris>=2.3"],
        "docs": DOCS,
        "dev": [
            *DOCS,
            "accelerate>=1.1",
            "axe-playwright-python>=0.1.8",  # axe-core, which finds what keeps people out of a page
            "coverage>=7.10",
            "flask>=3",  # for moto's server, as is flask-cors
            "flask-cors>=4",
            "gcp-storage-emulator>=2026.7",
            "gcsfs>=2024.12",
            # Helm itself, as a library; others would have to build it with Go.
            "helm-python-sdk>=0.2.2,<0.3; platform_machine == 'x86_64'",
            "grafana-foundation-sdk==1769699520!11.4.0",  # the types of Grafana 11.4
            "hypothesis>=6.90",
            "import-linter>=2.0",
            "jsonschema>=4.18",  # for schemas of our own
            "kubernetes-validate>=1.37,<2",  # the schemas of the manifests
            "lightning>=2.6",
            "matplotlib>=3.8",
            "mlflow-skinny>=2.10",
            "moto>=5",
            "mypy>=1.8",
            "peft>=0.21",
            "pillow>=10",
            "playwright>=1.65",  # drives the Chromium that is installed, and loads none
            "psycopg[binary]>=3.1",
            "pyarrow>=15",
            "pyte>=0.8",
            "pytest>=8,<9.2",  # pytest-xdist 3.8 makes its groups with what 9.2 has no more
            "pytest-timeout>=2.3",
            "pytest-xdist>=3.6",
            "redis>=5",
            "ruff>=0.5",
            "s3fs>=2024.12",
            "schemathesis>=4.32",
            "scikit-learn>=1.3",
            "tensorboard>=2.15",
            "transformers>=5.23",
            "types-PyYAML",
            "types-psutil",
            "wandb>=0.16",
        ],
    },
    entry_points={
        "console_scripts": ["hetero-hvd = hetero_hvd.cli:main"],
        "hetero_hvd.sinks": [
            f"{scheme} = hetero_hvd.run.sinks.destinations.{place}"
            for scheme, place in {
                "csv": "csv_file:CsvFile",
                "json": "json_file:JsonFile",
                "parquet": "parquet_file:ParquetFile",
                "openmetrics": "openmetrics_file:OpenMetricsFile",
                "tensorboard": "tensorboard_folder:TensorBoardFolder",
                "wandb": "wandb_run:WandbRun",
                "mlflow": "mlflow_run:MlflowRun",
                "postgresql": "postgresql_tables:PostgresqlTables",
                "influx": "influx_lines:InfluxLines",
                "redis": "redis_hash:RedisHash",
                "kubernetes": "kubernetes_object:KubernetesObject",
            }.items()
        ],
    },
)
