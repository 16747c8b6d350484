"""A Spark cluster within the driver's JVM, for tests that need executors: `local[n]` neither retries nor speculates."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession


def start_cluster(folder: str) -> str:
    """Start a master and two workers in the driver's JVM, as `local-cluster` does, and return the master's URL.

    Unlike in `local-cluster`, each worker has its own host: Spark runs no second attempt on the host of the first.
    """
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    gateway: Any = SparkContext._gateway
    jvm: Any = SparkContext._jvm
    conf = SparkConf()._jconf
    deploy = jvm.org.apache.spark.deploy
    started = deploy.master.Master.startRpcEnvAndEndpoint("127.0.0.1", 0, 0, conf)
    master = f"spark://127.0.0.1:{started._1().address().port()}"
    masters = gateway.new_array(jvm.String, 1)
    masters[0] = master
    for number in (1, 2):
        option = jvm.scala.Option.apply(number)
        arguments = (f"127.0.0.{number}", 0, 0, 1, 512, masters, folder, option, conf, jvm.scala.Option.empty())
        deploy.worker.Worker.startRpcEnvAndEndpoint(*arguments)
    return master


def speculating(folder: str) -> SparkSession.Builder:
    """Spark on such a cluster, which soon runs a second attempt of a slow task."""
    return (
        SparkSession.builder.master(start_cluster(folder))
        .config("spark.executor.memory", "512m")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.speculation", "true")
        .config("spark.speculation.interval", "50ms")
        .config("spark.speculation.minTaskRuntime", "50ms")
        .config("spark.speculation.multiplier", "0.1")
        .config("spark.speculation.efficiency.enabled", "false")
        .config("spark.speculation.quantile", "0.5")
    )
