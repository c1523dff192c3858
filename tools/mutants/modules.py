"""Which modules hold promises, and which tests are there to notice a mistake in each: declared, quickest first.

A test belongs to a module when it is the place where a reader would look for the promise, or when it shows the promise
at work from outside.
"""

from __future__ import annotations

from typing import Final

from tools.mutants.parts import Part, Simulator, files

_LIB: Final = "lib/src/magnetar"
_BOOKIE: Final = "bookie/src/magnetar/bookie"
_BROKER: Final = "broker/src/magnetar/broker"
_PROXY: Final = "proxy/src/magnetar/proxy"
_STANDALONE: Final = "standalone/src/magnetar/standalone"
_OPERATOR: Final = "operator/src/magnetar/operator/plan"
_SPARK: Final = "spark-jobs/src/magnetar/spark"

_LEDGER_TESTS: Final = files(
    "lib/tests",
    *("ledger_striping", "ledger_topology", "ledger_pending_adds", "ledger_last_confirmed", "ledger_metadata_ops"),
    *("ledger_placement", "ledger_recovery", "ledger_ensemble_change", "ledger_bookie_leaves", "ledger_takeover"),
    *("ledger_client", "ledger_appender", "ledger_tcp_bookie"),
)
_MANAGED_TESTS: Final = files(
    "lib/tests",
    *("managed_info_codec", "managed_cursor", "managed_ledger", "managed_entry_cache", "managed_ack_state"),
    *("managed_redelivery_counts", "managed_edges", "managed_trim", "managed_silence"),
    *("managed_letting_go", "managed_lost_data", "managed_on_bookkeeper", "managed_opening", "managed_unsure"),
    *("managed_offload", "managed_offload_reading", "managed_shared_reads"),
)
_STORE_TESTS: Final = files(
    "bookie/tests",
    *("bookie_ledger_state", "bookie_states_durable", "bookie_journal_disks", "bookie_journal_damage"),
    *("bookie_journal", "bookie_journal_format", "bookie_storage"),
    *("bookie_index", "bookie_read_ahead", "bookie_bookie", "bookie_contract", "bookie_cookie", "bookie_disk_watch"),
    *("bookie_directories", "bookie_limbo", "bookie_departed", "deleted_ledgers", "bookie_crash"),
    *("bookie_power_failure", "bookie_freed_memory"),
    "gc_emptied_logs",
)
_SUBSCRIPTION_TESTS: Final = files(
    "broker/tests",
    *("broker_dispatch_choosers", "broker_dispatch_consumer", "broker_dispatch_edges"),
    *("broker_subscription_shared", "broker_subscription_single"),
    *("broker_subscription_key_shared", "broker_subscription_managed", "broker_session_consume"),
    *("broker_policies_dispatch", "broker_topic_faults", "broker_dynamic_dispatch"),
    *("broker_foreign_acks", "broker_many_consumers"),
)
_OWNERSHIP_TESTS: Final = files(
    "broker/tests",
    *("broker_ownership_loads", "broker_ownership_claims", "broker_ownership", "broker_ownership_faults"),
    *(
        "broker_cluster_lookup",
        "broker_lookups_at_once",
        "broker_topic_patterns",
        "broker_topic_lifecycle",
        "broker_ownership_edges",
        "broker_bundle_moves",
    ),
    *("broker_policies_sessions", "broker_policies_dispatch", "broker_ownership_storm", "broker_ownership_zookeeper"),
)
_ACCESS_TESTS: Final = files(
    "broker/tests",
    *("broker_auth_rules", "broker_auth_memory", "broker_auth_admin", "broker_auth_sessions", "broker_peer_client"),
)

PARTS: Final = (
    Part(
        "ledger",
        f"{_LIB}/ledger",
        (
            *(
                "striping",
                "appender",
                "append_pipeline",
                "writer",
                "ensemble_change",
                "bookie_chooser",
            ),
            *("recovery", "recovery_driver", "last_confirmed", "entry_reader", "metadata_ops"),
        ),
        _LEDGER_TESTS,
        Simulator.STORAGE,
    ),
    Part("entry", f"{_LIB}/wire/bookkeeper", ("entry",), files("lib/tests", "wire_bookkeeper_entry", "ledger_client")),
    Part(
        "managed",
        f"{_LIB}/managed",
        (
            *("append_path", "cursors/cursor", "cursors/storage", "info_node", "ack_state"),
            *("entry_bitmap", "ledger_list", "redelivery_counts"),
            *(
                "trimming/choice",
                "trimming/trimming",
                "rollover",
                "factory",
                "managed_ledger",
                "ledger_rollover",
                "cursors/reading",
            ),
        ),
        _MANAGED_TESTS,
    ),
    Part(
        "offload",
        f"{_LIB}/managed",
        (
            *("offload/choice", "offload/context", "offload/owed", "offload/copies", "offload/run"),
            *("offload/offloads", "offload/upkeep", "ledger_readers"),
        ),
        files(
            "lib/tests",
            *("managed_offload_choice", "managed_offload_reading", "managed_offload_upkeep", "managed_offload"),
            "managed_shared_reads",
        ),
    ),
    # What is planted here is what somebody has thought of.
    Part("tiered storage", f"{_LIB}/tiered", (), files("lib/tests", "tiered_files", "tiered_offloader")),
    Part(
        "metadata",
        f"{_LIB}/metadata",
        ("zookeeper_session", "zookeeper"),
        files(
            "lib/tests",
            *("metadata_etcd_session", "metadata_zookeeper_handler", "metadata_zookeeper", "metadata_rocksdb"),
            *("metadata_etcd_access", "metadata_silent_servers", "metadata_zookeeper_nonsense"),
        ),
    ),
    Part(
        "coordination",
        f"{_LIB}/metadata",
        ("coordination", "node_cache", "sure_writes", "tree"),
        files(
            "lib/tests",
            *("metadata_sure_writes", "metadata_node_cache", "metadata_lost_while_claiming", "metadata_memory"),
            *("metadata_coordination", "metadata_rocksdb"),
        ),
    ),
    Part(
        "bookie",
        _BOOKIE,
        (
            *("bookie", "adds", "ledger_state", "journal/journal", "journal/files", "journal/format", "checkpoint"),
            *("replay", "storage/write_cache", "storage/directory_storage", "storage/index", "cookie", "disk_watch"),
            *("storage/entry_log_writer", "storage/entry_log_reader"),
        ),
        _STORE_TESTS,
        Simulator.STORAGE,
    ),
    Part(
        "garbage collection",
        f"{_BOOKIE}/gc",
        (
            *("collector", "compaction", "entry_log_usage", "ledger_collection", "live_ledgers", "log_collection"),
            *("log_scan", "plan"),
        ),
        files(
            "bookie/tests",
            *("gc_live_ledgers", "gc_plan", "gc_logs", "gc_apache_logs", "gc_bookie", "gc_collector", "gc_crash"),
            *("gc_emptied_logs", "gc_histories"),
        ),
        Simulator.STORAGE,
    ),
    Part(
        "autorecovery",
        f"{_BOOKIE}/autorecovery",
        (
            *("replication/replicator", "replication/worker", "underreplication", "fragments"),
            *("replication/entry_copy", "fragment_check"),
            *("replication_lock", "auditor/auditor"),
        ),
        files(
            "bookie/tests",
            *("bookie_fragments", "autorecovery_loss_watch", "bookie_replicator", "bookie_replication_worker"),
            *("autorecovery_auditor", "autorecovery_daemon", "autorecovery_underreplication"),
        ),
        Simulator.STORAGE,
    ),
    Part(
        "drain",
        f"{_BOOKIE}/drain",
        ("drain", "lost", "service"),
        files("bookie/tests", "bookie_departed", "bookie_drain_lost", "bookie_drain_on_disks", "bookie_drain"),
        Simulator.STORAGE,
    ),
    Part(
        "ownership",
        _BROKER,
        ("bundles/ownership", "bundles/owned_bundles", "bundles/namespace_bundles", "bundles/moves", "topics/service"),
        _OWNERSHIP_TESTS,
    ),
    Part(
        "publishing",
        _BROKER,
        ("topics/producer", "topics/producers", "topics/deduplication", "topics/topic"),
        files(
            "broker/tests",
            *("broker_topic_doors", "broker_policies_deduplication", "broker_session_produce", "broker_topic_faults"),
            "broker_replicated_messages",
            *(
                "broker_policies_sessions",
                "broker_topic_lifecycle",
                "broker_transactions_acks",
                "broker_transactions_takeover",
                "broker_compacted_topic",
                "broker_bundle_moves",
                "client_on_broker",
                "broker_shadows",
            ),
        ),
    ),
    Part(
        "compaction",
        f"{_BROKER}/compaction",
        ("compacted_cursor", "entries", "latest", "members", "output", "run", "threshold", "topic_compaction"),
        files(
            "broker/tests",
            *("broker_compaction_model", "broker_compaction_recorded", "broker_compacted_topic", "broker_compaction"),
            *("broker_compaction_failures", "broker_compaction_started", "broker_compaction_output"),
            *("broker_compaction_attacks", "broker_compaction_owners"),
        ),
    ),
    Part(
        "transaction coordinators",
        f"{_BROKER}/transactions",
        ("coordinator", "coordinator_endings", "coordinator_log", "coordinator_table", "coordinator_timeouts"),
        files(
            "broker/tests",
            *("broker_transaction_records", "broker_transaction_coordinator", "broker_transaction_faults"),
            *("broker_transaction_commands", "broker_transaction_attacks", "broker_batched_writes"),
        ),
    ),
    Part(
        "transaction buffers",
        _BROKER,
        (
            *("transactions/buffers/buffer", "transactions/buffers/buffer_table", "transactions/buffers/held_appends"),
            *("transactions/buffers/segments", "transactions/buffers/snapshot_codec", "transactions/inquiry"),
            *("transactions/buffers/snapshot_topic", "transactions/buffers/snapshots"),
            *("transactions/earlier", "transactions/standings"),
        ),
        files(
            "broker/tests",
            *("broker_transaction_table", "broker_transaction_buffer", "broker_transaction_buffer_faults"),
            *("broker_transaction_segments", "broker_transaction_attacks", "broker_transaction_inquiry"),
            *("broker_transaction_late", "broker_transaction_standings", "broker_snapshot_topic"),
        ),
    ),
    Part(
        "delayed entries",
        f"{_BROKER}/subscriptions",
        ("delayed", "delay_bucket", "delayed_index", "position_set", "sorted_keys"),
        files(
            "broker/tests",
            *("broker_delayed_keys", "broker_delayed", "broker_delay_bucket", "broker_subscription_shared"),
            *("broker_dispatch_turns", "broker_delayed_in_cache"),
        ),
    ),
    Part(
        "liveness",
        _BROKER,
        ("session/liveness",),
        files("broker/tests", "broker_session_liveness", "broker_session_handshake", "broker_policies_sessions"),
    ),
    Part(
        "topic policies",
        _BROKER,
        ("policies/change_events_namespace", "policies/change_events_writer"),
        files("broker/tests", "broker_policies_change_events", "broker_policies_change_state"),
    ),
    Part(
        "expiry",
        _BROKER,
        ("topics/expiry",),
        files("broker/tests", "broker_policies_expiry", "broker_policies_upkeep"),
    ),
    Part(
        "dispatch",
        _BROKER,
        (
            *(
                "subscriptions/acknowledgement",
                "dispatch/consumer",
                "dispatch/pending_acknowledgements",
                "dispatch/redelivery",
                "subscriptions/pump",
                "subscriptions/filtering",
            ),
            *("dispatch/exclusive", "dispatch/failover", "dispatch/hash_ring", "dispatch/key_shared"),
            *("dispatch/shared", "dispatch/single_active", "dispatch/split_ranges", "dispatch/sticky_ranges"),
        ),
        (*_SUBSCRIPTION_TESTS, *files("broker/tests", "broker_transactions_acks")),
    ),
    Part(
        "turns",
        _BROKER,
        ("policies/send_turns", "subscriptions/dispatch_turns"),
        files("broker/tests", "broker_dispatch_turns", "broker_send_turns", "broker_many_consumers"),
    ),
    Part(
        "receipts",
        f"{_LIB}/wire/pulsar",
        ("send_receipts",),
        files("lib/tests", "wire_pulsar_send_receipts", "wire_pulsar_command", "client_protocol"),
    ),
    Part(
        "relays",
        f"{_LIB}/client",
        ("relay", "unanswered"),
        (*files("lib/tests", "client_relay"), *files("broker/tests", "broker_replication")),
    ),
    Part(
        "regions",
        _BROKER,
        (
            *("replication/outgoing", "replication/remote_partitions", "replication/remote_clusters"),
            *("replication/topic_replicators", "replication/replicator", "source_position", "replicated_message"),
            *("replication/running_replicators", "replication/shadow_replicators", "replication/http_lookup"),
            *("replication/remote_link", "replication/remote_links", "replication/non_persistent_replicators"),
            *("migration/migration", "migration/destinations", "migration/green_cluster"),
            *("replicated_subscriptions/snapshot_round", "replicated_subscriptions/kept_snapshots"),
        ),
        files(
            "broker/tests",
            *(
                "broker_source_position",
                "broker_replicated_message",
                "broker_replication_outgoing",
                "broker_replication_remotes",
            ),
            *("broker_replication_partitions", "broker_replication", "broker_replicated_messages"),
            *("broker_replicator_markers", "broker_replicator", "broker_topic_replicators"),
            *("broker_shadow_topics", "broker_replication_http_lookup", "broker_replication_transactions"),
            *("broker_replication_one_store", "broker_migration", "broker_replicated_subscription_parts"),
            *("broker_non_persistent_replicator", "broker_resting_replicators"),
        ),
    ),
    Part(
        "pending-acks",
        _BROKER,
        (
            *("transactions/pending_index", "transactions/pending_records", "transactions/pending_state"),
            *("transactions/pending_handle", "transactions/pending_log", "transactions/pending_topic"),
            *("transactions/pending_doubts", "transactions/pending_statistics"),
            *("subscriptions/held", "subscriptions/hidden"),
        ),
        files(
            "broker/tests",
            *("broker_transactions_pending_state", "broker_transactions_pending_log"),
            *("broker_transactions_acks", "broker_transactions_takeover", "broker_transaction_attacks"),
            *("broker_transaction_late", "broker_transaction_frames"),
        ),
    ),
    Part(
        "access",
        _BROKER,
        ("auth/access", "auth/authorizer", "auth/rules", "session/access", "peers/access", "admin/web/access"),
        _ACCESS_TESTS,
    ),
    # What is planted here is what somebody has thought of.
    Part("subscriptions", f"{_BROKER}/subscriptions", (), _SUBSCRIPTION_TESTS),
    Part(
        "topics",
        f"{_BROKER}/topics",
        (),
        files(
            "broker/tests",
            *("broker_topic_doors", "broker_policies_sweep", "broker_policies_upkeep", "broker_compacted_topic"),
            *("broker_topic_patterns", "broker_policies_expiry"),
        ),
    ),
    Part(
        "requests",
        f"{_BROKER}/session",
        (),
        files(
            "broker/tests",
            *("broker_session_edges", "broker_session_consume", "broker_session_produce"),
            "broker_transactions_takeover",
        ),
    ),
    Part(
        "policies",
        f"{_BROKER}/policies",
        (),
        files("broker/tests", "broker_policies_limiter", "broker_policies_effective"),
    ),
    Part("statistics", f"{_BROKER}/admin", (), files("broker/tests", "broker_many_subscriptions")),
    Part("tokens", f"{_LIB}/auth", ("token", "authenticator"), files("lib/tests", "auth_token", "auth_providers")),
    Part(
        "kept positions",
        f"{_BROKER}/read_only",
        ("position_difference", "position_text", "kept_position"),
        files("broker/tests", "read_only_positions", "read_only_kept_position", "read_only_topic_owner"),
    ),
    Part(
        "read-only brokers",
        f"{_BROKER}/read_only",
        ("bindings", "bundles", "followed_topic", "one_request", "spread", "topic_owner"),
        files(
            "broker/tests",
            *("read_only_one_request", "broker_read_only_parts", "read_only_topic_owner", "broker_read_only"),
            *("broker_read_only_transactions", "read_only_bundle", "read_only_races"),
        ),
    ),
    Part(
        "followed transactions",
        f"{_BROKER}/transactions/buffers",
        ("followed_transactions",),
        files("broker/tests", "broker_read_only_transactions", "broker_shadows"),
    ),
    Part(
        "shadow topics",
        f"{_BROKER}/topics/following",
        ("following_topic", "shadow_topic", "shadows", "source_end"),
        files("broker/tests", "broker_shadows", "broker_read_only_transactions"),
    ),
    Part(
        "shadow ledgers",
        f"{_LIB}/managed/following",
        ("following_ledger", "shadow_ledger"),
        files("lib/tests", "managed_shadow", "managed_following"),
    ),
    Part(
        "followed ledgers",
        f"{_LIB}/managed/following",
        ("tail", "list_changes", "tail_follower", "follower", "followed_ledger"),
        files(
            "lib/tests",
            *("managed_following_tail", "managed_following", "managed_following_faults"),
            *("managed_following_history", "managed_following_offload"),
        ),
    ),
    Part("holds", f"{_LIB}/client", ("hold",), files("lib/tests", "client_hold")),
    Part(
        "proxy",
        _PROXY,
        ("targets", "client_access"),
        files(
            "proxy/tests",
            *("proxy_targets", "proxy_gate", "proxy_authentication", "proxy_proven_targets", "proxy_http"),
            *("proxy_sessions", "proxy_broker_places", "proxy_slow_brokers"),
        ),
    ),
    # What is planted here is what somebody has thought of.
    Part(
        "standalone", _STANDALONE, (), files("standalone/tests", "standalone_data_folder", "standalone_folder_checks")
    ),
    # What is planted here is what somebody has thought of.
    Part(
        "limits",
        f"{_LIB}/net",
        (),
        files(
            "lib/tests",
            *("net_http_pace", "net_held_bytes", "net_connection", "net_http_connections", "net_places"),
            *("net_start_tls_early", "net_key_stores", "net_held_bytes_newcomers", "net_paced_queue"),
            *("net_held_bytes_answers", "net_held_bytes_edges", "net_refused_connections", "net_http_held"),
        ),
    ),
    Part(
        "operator",
        _OPERATOR,
        (
            *("pool/plan", "pool/members", "pool/scale", "pool/repair", "pool/rollout", "pool/volumes"),
            *("pool/questions", "rollout"),
        ),
        files(
            "operator/tests",
            *("plan_rollout", "plan_pool_scale", "plan_pool_rollout", "plan_pool_repair", "plan_pool_life"),
            *("plan_pool_ensembles", "operator_refusals", "plan_pool_property"),
        ),
        Simulator.OPERATOR,
    ),
    Part("slices", f"{_SPARK}/planning", ("plan",), files("spark-jobs/tests", "spark_plan")),
    Part(
        "sink",
        f"{_SPARK}/sink",
        ("sending", "rows"),
        files("spark-jobs/tests", "spark_sink_finish", "spark_sink_rows", "spark_sink_sending"),
    ),
    Part(
        "loss",
        f"{_SPARK}/planning",
        ("loss",),
        files("spark-jobs/tests", "spark_plan", "spark_planner", "spark_source_loss"),
    ),
)
"""Every part; a module stands in one of them."""


def part_of(module: str) -> Part:
    """The part that a module belongs to. Of one that stands in none: of the parts with the nearest folder above it the
    first that names no modules, else the first."""
    named = (part for part in PARTS if module in part.paths())
    above = (part for part in PARTS if module.startswith(f"{part.folder}/"))
    return next(named, None) or max(above, key=lambda part: (len(part.folder), not part.modules))
