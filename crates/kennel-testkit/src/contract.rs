//! The contract: what every provider must do, in cases grouped by subject. [`crate::contract_suite!`] creates a test
//! for each case.

pub mod bridges;
pub mod copy;
pub mod exec;
pub mod files;
pub mod generations;
pub mod git;
pub mod hostile;
pub mod idle;
pub mod isolation;
pub mod leftovers;
pub mod lifecycle;
pub mod limits;
pub mod logs;
pub mod long_running;
pub mod masks;
pub mod modes;
pub mod mounts;
pub mod network;
pub mod owners;
pub mod paths;
pub mod processes;
pub mod reattach;
pub mod sockets;
pub mod terminal;
pub mod tied;
pub mod volumes;

/// Creates one test for every case of the contract. The expression creates a new subject for each.
#[macro_export]
macro_rules! contract_suite {
    ($subject:expr) => {
        $crate::isolation_contract! { $subject }
        $crate::keeper_contract! { $subject }
        $crate::sockets_contract! { $subject }
    };
}

/// Creates tests for the cases about creating, isolating and keeping sandboxes. It is for further modes of a provider
/// that passes the whole contract in another mode.
#[macro_export]
macro_rules! isolation_contract {
    ($subject:expr) => {
        $crate::contract_cases! { $subject;
            lifecycle {
                provider_is_available,
                sandbox_is_created_started_stopped_and_removed,
                sandbox_is_found_by_id_and_by_name,
                all_sandboxes_are_listed,
                name_is_given_to_one_sandbox_only,
                invalid_name_is_refused,
                renamed_sandbox_is_found_by_its_new_name_only,
                paused_sandbox_runs_nothing_and_resumes,
                unknown_sandbox_is_not_found,
                commands_fail_unless_the_sandbox_runs,
                starting_and_stopping_twice_succeeds,
                files_survive_a_stop,
                sandbox_is_found_by_a_later_process,
                running_sandbox_is_removed_by_force_only,
                stopping_ends_commands,
                events_are_reported_in_order,
                caller_chooses_the_id,
                labels_and_settings_are_returned,
                reserved_labels_are_refused,
                many_sandboxes_at_once,
                idle_sandbox_stops,
                ended_sandbox_is_auto_removed,
            }
            logs {
                log_separates_streams_and_exit_code_is_returned,
                last_lines_are_returned,
                followed_log_ends_with_the_sandbox,
                log_is_empty_without_a_main_process,
                main_process_can_be_attached,
                start_fails_if_the_main_program_is_missing,
            }
            limits {
                memory_limit_is_enforced,
                process_limit_is_enforced,
                limits_can_be_changed,
                cpu_limit_is_enforced,
                limits_are_reported,
                disk_limit_is_enforced,
            }
            network {
                network_none_has_only_loopback,
                network_host_is_the_hosts_namespace,
                network_bridge_has_its_own_namespace_and_a_route,
                bridge_reaches_neither_the_host_nor_sandboxes,
                published_ports_are_reachable,
            }
            mounts {
                read_only_root_cannot_be_written,
                workspace_is_shared,
                directories_and_files_are_mounted,
                start_follows_no_symlink_at_a_mount_source,
                read_only_mount_cannot_be_written,
                missing_mount_source_is_an_error,
                workspace_files_belong_to_the_requested_owner,
                nested_mounts_are_visible,
            }
            owners {
                files_created_in_mounts_have_the_owners_of_the_mode,
            }
            modes {
                no_file_becomes_set_id,
                no_file_becomes_set_id_for_another_user,
                no_file_becomes_set_id_in_a_mount,
                files_written_by_the_keeper_are_not_set_id,
                background_processes_can_change_modes,
                many_mode_changes_block_no_other_command,
                landlock_rules_inside_are_not_bypassed,
                commands_cannot_change_limits_of_process_1,
            }
            masks {
                kennels_own_directories_are_masked,
                missing_kennel_directory_cannot_be_created,
                mount_of_kennel_directory_is_refused,
                engine_sockets_are_masked,
            }
            git {
                hooks_cannot_be_changed,
                git_settings_can_be_protected,
                symlinks_in_a_repository_are_refused,
                missing_hooks_directory_cannot_be_created,
                git_file_cannot_be_redirected,
                repository_subdirectory_is_a_workspace,
                repositories_in_other_mounts_are_protected,
            }
            volumes {
                data_volume_is_found_by_the_sandbox_name,
                data_volume_without_a_sandbox_name_is_refused,
                volumes_are_listed_with_their_users,
                volume_in_use_is_not_removed,
                renamed_sandbox_keeps_its_volume,
                unknown_volume_is_not_found,
                volume_removed_during_creation_is_whole_or_new,
            }
            isolation {
                every_layer_of_the_mode_is_enforced,
                no_dangerous_capabilities,
                only_own_processes_are_visible,
                host_name_is_separate,
                no_descriptor_is_inherited,
                host_files_are_not_changed,
                kernel_settings_cannot_be_changed,
                mounting_is_refused,
                system_calls_are_filtered,
                nested_sandboxes_need_the_nesting_option,
                other_sandboxes_cannot_be_reached,
            }
            tied {
                tied_sandbox_ends_with_its_owner,
                tied_sandbox_ends_with_its_last_command,
                tied_sandbox_ends_if_its_owner_leaves_during_start,
                tied_sandbox_survives_other_connections,
                running_sandbox_is_tied_and_untied,
            }
            hostile {
                processes_inside_cannot_connect_to_the_keeper,
                connection_without_the_token_is_refused,
                malformed_frames_end_only_their_connection,
                too_many_connections_are_refused,
                replaced_socket_is_refused,
                socket_replaced_from_inside_is_refused,
                keeper_survives_kill_of_all_processes,
            }
            leftovers {
                leaves_nothing_behind,
            }
        }
    };
}

/// Creates tests for the cases about the work of keepers.
#[macro_export]
macro_rules! keeper_contract {
    ($subject:expr) => {
        $crate::contract_cases! { $subject;
            exec {
                arguments_are_passed_unchanged,
                string_is_run_by_a_shell,
                exit_codes_are_returned,
                the_environment_is_set,
                the_working_directory_is_set,
                signal_ends_a_command,
                output_is_binary_and_separate,
                command_without_stdin_reads_end_of_file,
                eight_mebibytes_through_a_pipe,
                unread_input_is_no_error,
                missing_program_exits_with_127,
                program_that_cannot_run_exits_with_126,
                empty_command_is_refused,
                timeout_keeps_output,
                two_hundred_commands_at_once,
                unread_stream_blocks_no_other,
                much_output_takes_little_memory,
                collected_output_is_capped,
                large_arguments_pass_and_huge_ones_are_refused,
                thousands_of_requests_on_one_connection,
                commands_run_as_a_user,
                home_and_path_are_set,
                processes_and_memory_are_counted,
                disk_writes_are_counted,
            }
            processes {
                a_timeout_ends_the_whole_tree,
                background_process_survives_its_command,
                a_tied_command_dies_with_its_handle,
                a_tied_command_dies_with_its_connection,
                detached_command_survives_its_connection,
                ending_a_command_ends_its_tree,
                commands_are_listed,
                orphans_are_reaped,
                signal_reaches_the_process_group,
            }
            reattach {
                attach_continues_at_the_old_position,
                no_byte_is_lost_over_cut_connections,
                overwritten_output_is_counted,
                disconnected_reader_does_not_stop_the_command,
                exit_status_is_kept_until_read,
                second_reader_replaces_the_first,
                unknown_command_is_not_found,
            }
            terminal {
                terminal_has_the_requested_size,
                terminal_resize_is_seen,
                control_c_interrupts,
                control_z_stops_and_control_d_ends,
                login_shell_starts,
                terminal_is_reattached_after_a_cut_connection,
            }
            files {
                large_files_are_read_back_unchanged,
                part_of_a_file_is_read,
                any_file_name_is_accepted,
                replacing_a_file_is_atomic,
                aborted_write_leaves_no_file,
                missing_parents_are_created,
                permission_bits_are_kept,
                stat_and_list_report_metadata,
                directories_are_created,
                symlinks_are_created,
                permissions_are_set,
                symlinks_and_permissions_as_another_user,
                files_are_moved,
                files_are_removed,
                changes_are_reported,
                part_of_a_file_is_written,
                directories_are_listed_to_a_depth,
                file_requests_have_the_rights_of_their_user,
                missing_path_is_not_found,
            }
            copy {
                copies_start_no_process,
                copies_work_with_a_keeper_without_features,
            }
            generations {
                keeper_of_generation_1_is_supported,
                missing_features_are_refused,
                host_of_generation_1_is_supported,
            }
            idle {
                commands_and_streams_are_use,
                open_connection_is_not_use,
                main_process_is_use_and_background_is_not,
                paused_time_is_not_idle_time,
            }
            long_running {
                list_describes_commands,
                listed_arguments_are_capped,
                held_output_arrives_exactly_once,
                held_output_is_kept_until_consumed,
                lingering_command_is_attached_again,
                lingering_command_ends_after_its_time,
                input_continues_after_a_cut_connection,
                several_readers_share_a_command,
                dropped_fan_out_ends_its_subscribers,
            }
            paths {
                dot_dot_stays_inside,
                absolute_symlinks_resolve_inside,
                symlink_loops_are_an_error,
                fifos_and_devices_are_refused,
                magic_links_are_refused,
                removal_follows_no_symlink,
            }
        }
    };
}

/// Creates tests for the cases about sockets inside. They depend on how the keeper is reached and on its rights, so they are
/// also for further modes of a provider.
#[macro_export]
macro_rules! sockets_contract {
    ($subject:expr) => {
        $crate::contract_cases! { $subject;
            sockets {
                http_server_inside_is_reached,
                web_socket_to_the_inside_works,
                either_side_closes_its_direction_first,
                unix_socket_is_opened_as_the_user_inside,
                connection_to_nothing_is_a_clear_error,
                two_hundred_streams_at_once,
                large_streams_take_little_memory,
                host_serves_a_port_inside,
                host_serves_a_unix_socket_inside,
                unaccepted_connections_are_limited,
                host_answers_datagrams_from_inside,
                ports_of_the_host_are_refused,
                sockets_need_a_keeper_that_knows_them,
            }
            bridges {
                programs_inside_use_a_socket_of_the_host,
                bridge_ends_with_its_sandbox,
                bridge_is_not_use_and_its_connections_are,
                wrong_bridges_are_refused,
            }
        }
    };
}

/// Creates one module for each subject, with one test for each case.
#[doc(hidden)]
#[macro_export]
macro_rules! contract_cases {
    ($subject:expr; $($module:ident { $($case:ident,)* })*) => {
        $(mod $module {
            #[allow(unused_imports)] // the expression may use no import
            use super::*;
            $(#[test]
            fn $case() {
                $crate::check(|| $subject, $crate::contract::$module::$case);
            })*
        })*
    };
}

#[cfg(test)]
mod tests {
    /// Every case of the contract is in a suite, so that none is left out.
    #[test]
    fn every_case_is_in_the_suite() {
        let suite = include_str!("contract.rs");
        let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/contract");
        for entry in std::fs::read_dir(dir).unwrap() {
            let source = std::fs::read_to_string(entry.unwrap().path()).unwrap();
            for line in source.lines() {
                let Some(rest) = line.strip_prefix("pub async fn ") else { continue };
                let name = rest.split('(').next().unwrap();
                assert!(suite.contains(&format!(" {name},\n")), "{name} is not in the suite");
            }
        }
    }
}
