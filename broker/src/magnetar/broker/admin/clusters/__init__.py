"""What belongs to a cluster or an instance in the admin API: clusters, tenants, bookies, quotas."""
