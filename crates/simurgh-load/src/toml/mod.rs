//! Native scenario files.
