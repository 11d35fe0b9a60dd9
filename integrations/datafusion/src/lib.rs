//! A Parquet table that DataFusion reads through an object store, and the queries that the test and the measurement use.

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

/// The name that the table's object has in each store.
pub const OBJECT: &str = "table.parquet";
const TABLE: &str = "events";

/// Creates a DataFusion session. Its table is the object [`OBJECT`] of this store. The session has the default options of DataFusion, and
/// shares no cache with other sessions.
///
/// # Errors
/// Returns an error if the object cannot be read, or if it is not a Parquet file.
pub async fn session(store: Arc<dyn ObjectStore>) -> Result<SessionContext> {
    let session = SessionContext::new();
    let stores = ObjectStoreUrl::parse("ironmap://tables")?;
    session.register_object_store(stores.as_ref(), store);
    let url = format!("{stores}{OBJECT}");
    session.register_parquet(TABLE, url, ParquetReadOptions::default()).await?;
    Ok(session)
}

/// Reads every page of the table, and returns one row of aggregates. The order of the rows does not affect the aggregates.
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

/// Returns the rows with these ids, sorted by id.
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

/// Joins the batches of a result into one batch.
async fn only(query: DataFrame) -> Result<RecordBatch> {
    let schema = Arc::new(query.schema().as_arrow().clone());
    let batches = query.collect().await?;
    let schema = batches.first().map_or(schema, RecordBatch::schema);
    Ok(concat_batches(&schema, &batches)?)
}
