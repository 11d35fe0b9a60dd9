//! A Parquet table that DataFusion reads through an object store, and the queries of the test and of the measurement.

mod table;

use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::compute::concat_batches;
use datafusion::error::Result;
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::functions_aggregate::expr_fn::{count, max, min, sum};
use datafusion::prelude::{DataFrame, ParquetReadOptions, SessionContext, col, lit};
use object_store::ObjectStore;

pub use table::{PAGE_ROWS, Random, id, write};

/// The name of the table's object in each store.
pub const OBJECT: &str = "table.parquet";
const TABLE: &str = "events";

/// A session in which a table is the object [`OBJECT`] of a store. The session has all of DataFusion's defaults, and its own caches.
///
/// # Errors
/// The object cannot be read, or is no Parquet file.
pub async fn session(store: Arc<dyn ObjectStore>) -> Result<SessionContext> {
    let session = SessionContext::new();
    let stores = ObjectStoreUrl::parse("ironmap://tables")?;
    session.register_object_store(stores.as_ref(), store);
    let url = format!("{stores}{OBJECT}");
    session.register_parquet(TABLE, url, ParquetReadOptions::default()).await?;
    Ok(session)
}

/// Reads every page of the table, and returns one row. No aggregate depends on the order of the rows.
///
/// # Errors
/// The errors of the store and of DataFusion.
pub async fn scan(session: &SessionContext) -> Result<RecordBatch> {
    let aggregates = vec![
        count(col("id")),
        sum(col("number")),
        min(col("fraction")),
        max(col("fraction")),
        min(col("text")),
        max(col("text")),
    ];
    only(session.table(TABLE).await?.aggregate(Vec::new(), aggregates)?).await
}

/// The rows with these ids, in the order of the ids.
///
/// # Errors
/// The errors of the store and of DataFusion.
pub async fn look_up(session: &SessionContext, ids: &[i64]) -> Result<RecordBatch> {
    let wanted = match ids {
        [id] => col("id").eq(lit(*id)),
        ids => col("id").in_list(ids.iter().map(|id| lit(*id)).collect(), false),
    };
    only(session.table(TABLE).await?.filter(wanted)?.sort_by(vec![col("id")])?).await
}

/// The result as one batch.
async fn only(query: DataFrame) -> Result<RecordBatch> {
    let schema = Arc::new(query.schema().as_arrow().clone());
    let batches = query.collect().await?;
    let schema = batches.first().map_or(schema, RecordBatch::schema);
    Ok(concat_batches(&schema, &batches)?)
}
