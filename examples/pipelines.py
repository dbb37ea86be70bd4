"""Sales in three layers: raw orders, clean totals by day, and a report.

pip install 'rota-scheduler[duckdb]', then: rota up examples/pipelines.py, and in another shell:

    rota pipeline run sales/bronze/orders --wait
    rota run list --namespace sales
    rota pipeline preview sales/gold/report --sql "SELECT * FROM sales.gold.report"
"""

from duckdb import DuckDBPyConnection, DuckDBPyRelation

from rota import Rota

app = Rota()


@app.pipeline("sales/bronze/orders")
def orders(con: DuckDBPyConnection, count: int = 100_000) -> DuckDBPyRelation:
    """Sample orders; every hundredth was cancelled."""
    return con.sql(f"""
        SELECT range AS id,
               DATE '2026-01-01' + (range % 90)::INTEGER AS day,
               'shop-' || range % 7 AS shop,
               range % 5 + 1 AS quantity,
               100 + range * 7919 % 900 AS price_cents,
               range % 100 = 0 AS cancelled
        FROM range({count})
    """)


app.pipeline(
    "sales/silver/daily_totals",
    """
    SELECT day, shop, count(*) AS orders, sum(quantity * price_cents)::BIGINT AS revenue_cents
    FROM sales.bronze.orders
    WHERE NOT cancelled
    GROUP BY day, shop
    """,
    after="sales/bronze/orders",
    description="Revenue by day and shop, without what was cancelled.",
)
app.pipeline(
    "sales/gold/report",
    """
    SELECT shop, sum(orders)::BIGINT AS orders, sum(revenue_cents)::BIGINT AS revenue_cents,
           arg_max(day, revenue_cents) AS best_day
    FROM sales.silver.daily_totals
    GROUP BY shop
    ORDER BY revenue_cents DESC
    """,
    after="sales/silver/daily_totals",
    description="Which shop earns most.",
)
app.schedule("nightly-sales", "sales/bronze/orders", kind="pipeline", cron="0 2 * * *", timezone="Europe/Oslo")
