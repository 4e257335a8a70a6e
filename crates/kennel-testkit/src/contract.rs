//! The contract: what every provider must do, in cases grouped by subject. [`crate::contract_suite!`] creates a test
//! for each case.

pub mod copy;
pub mod exec;
pub mod files;
pub mod git;
pub mod hostile;
pub mod isolation;
pub mod leftovers;
pub mod lifecycle;
pub mod limits;
pub mod logs;
pub mod masks;
pub mod modes;
pub mod mounts;
pub mod network;
pub mod owners;
pub mod paths;
pub mod processes;
pub mod reattach;
pub mod terminal;
pub mod tied;
pub mod volumes;

/// Creates one test for every case of the contract. The expression creates a new subject for each.
#[macro_export]
macro_rules! contract_suite {
    ($subject:expr) => {
        $crate::contract_of_walls! { $subject }
        $crate::contract_of_keepers! { $subject }
    };
}

/// Creates tests for the cases about creating, isolating and keeping sandboxes. It is for further modes of a provider
/// that passes the whole contract in another mode.
#[macro_export]
macro_rules! contract_of_walls {
    ($subject:expr) => {
        $crate::contract_cases! { $subject;
            lifecycle {
                it_is_available,
                starts_runs_stops_and_goes,
                found_by_id_and_by_name,
                all_are_listed,
                one_name_is_given_once,
                a_bad_name_is_refused,
                it_gets_another_name,
                it_stands_still_and_goes_on,
                an_unknown_one_is_not_found,
                one_that_does_not_run_says_stopped,
                starting_and_stopping_again_is_no_error,
                files_survive_a_stop,
                found_by_a_later_process,
                a_running_one_is_removed_by_force_only,
                stopping_ends_its_commands,
                its_life_is_told,
                labels_and_settings_come_back,
                labels_of_kennels_own_are_refused,
                many_at_once,
                an_idle_one_stops_by_itself,
                an_ended_one_is_removed_if_asked,
            }
            logs {
                streams_are_kept_apart_and_the_code_is_told,
                the_last_lines,
                followed_to_the_end,
                empty_without_a_main_process,
                the_main_process_can_be_attached,
                a_missing_main_process_is_told,
            }
            limits {
                memory_is_held,
                processes_are_held,
                cpu_is_held,
                they_are_reported,
                the_disk_is_held,
            }
            network {
                none_is_loopback_only,
                host_is_the_hosts,
                bridge_is_its_own_with_a_way_out,
                bridge_reaches_neither_the_host_nor_sandboxes,
                published_ports_are_reachable,
            }
            mounts {
                a_read_only_root_is_not_written,
                the_workspace_is_shared,
                a_directory_is_mounted,
                a_start_follows_no_symlink_to_a_mount,
                a_read_only_mount_is_not_written,
                a_missing_source_is_an_error,
                files_belong_to_the_owner,
                one_is_seen_within_another,
            }
            owners {
                what_is_made_in_a_mount_has_the_owners_of_the_row,
            }
            modes {
                no_file_becomes_set_id,
                no_file_becomes_set_id_for_another_user,
                no_file_becomes_set_id_in_a_mount,
                no_file_that_is_written_becomes_set_id,
                what_outlives_its_command_sets_modes,
                many_modes_at_once_stop_nobody,
                a_fence_inside_is_not_climbed,
                the_keeper_is_not_meddled_with,
            }
            masks {
                kennels_own_directories_are_masked,
                a_missing_directory_of_kennels_cannot_be_made,
                a_mount_of_kennels_own_is_refused,
                engines_sockets_are_masked,
            }
            git {
                hooks_cannot_be_changed,
                settings_can_be_protected,
                symlinks_in_a_repository_are_refused,
                what_is_missing_cannot_be_put_there,
                a_file_that_leads_to_a_repository_stays,
                a_part_of_a_repository_is_a_workspace,
                repositories_in_other_mounts,
            }
            volumes {
                its_own_is_found_again,
                one_that_nobody_would_find_is_refused,
            }
            isolation {
                every_layer_of_the_row_is_there,
                capabilities_are_few,
                its_processes_are_its_own,
                the_host_name_is_its_own,
                no_descriptor_is_inherited,
                the_hosts_files_stay_as_they_are,
                kernel_settings_cannot_be_changed,
                mounting_is_refused,
                system_calls_are_filtered,
                sandboxes_inside_are_asked_for,
                no_other_sandbox_is_in_reach,
            }
            tied {
                it_goes_with_its_owner,
                it_goes_with_its_last_command,
                it_goes_when_it_is_left_while_it_starts,
                it_stays_for_others,
            }
            hostile {
                the_inside_cannot_talk_to_its_keeper,
                a_secret_is_wanted_where_there_is_one,
                garbage_ends_its_own_connection_only,
                too_many_connections_are_refused,
                a_swapped_socket_is_refused,
                a_socket_swapped_from_inside_is_refused,
                the_keeper_outlives_a_massacre,
            }
            leftovers {
                leaves_nothing_behind,
            }
        }
    };
}

/// Creates tests for the cases about the work of keepers.
#[macro_export]
macro_rules! contract_of_keepers {
    ($subject:expr) => {
        $crate::contract_cases! { $subject;
            exec {
                arguments_are_passed_as_they_are,
                a_string_is_run_by_a_shell,
                exit_codes_come_back,
                the_environment_is_set,
                the_working_directory_is_set,
                signals_end_it,
                output_is_binary_and_separate,
                without_standard_input_it_reads_the_end,
                eight_mebibytes_through_a_pipe,
                unread_input_is_no_error,
                a_missing_program_is_127,
                a_program_that_cannot_run_is_126,
                an_empty_command_is_refused,
                a_timeout_keeps_what_was_printed,
                two_hundred_at_once,
                an_unread_stream_stops_no_other,
                much_output_takes_little_memory,
                collected_output_is_capped,
                large_arguments_pass_and_huge_ones_are_refused,
                thousands_of_requests_on_one_connection,
                commands_run_as_a_user,
                home_and_path_are_set,
                use_is_counted,
                writes_are_counted,
            }
            processes {
                a_timeout_ends_the_whole_tree,
                a_background_process_lives_on,
                a_tied_command_dies_with_its_handle,
                a_tied_command_dies_with_its_connection,
                a_detached_command_lives_on,
                ending_a_command_ends_its_tree,
                commands_are_listed,
                orphans_are_reaped,
                a_signal_reaches_the_group,
            }
            reattach {
                it_goes_on_where_it_was,
                no_byte_is_lost_over_cut_connections,
                what_was_overwritten_is_counted,
                a_reader_that_leaves_in_the_middle_stops_nothing,
                the_end_is_kept,
                the_newest_reader_wins,
                an_unknown_command_is_not_found,
            }
            terminal {
                it_is_a_terminal_of_its_size,
                a_new_size_is_seen,
                control_c_interrupts,
                control_z_stops_and_control_d_ends,
                a_login_shell_is_found,
                a_dropped_terminal_is_found_again,
            }
            files {
                large_ones_come_back_whole,
                a_part_is_read,
                any_name_will_do,
                a_reader_never_sees_half,
                an_aborted_write_leaves_nothing,
                missing_parents_are_made,
                permission_bits_are_kept,
                stat_and_list_tell_the_truth,
                directories_are_made,
                symlinks_are_created,
                permissions_are_set,
                symlinks_and_permissions_as_another_user,
                things_are_moved,
                things_are_removed,
                changes_are_seen,
                users_see_what_they_may,
                what_is_not_there_is_not_found,
            }
            copy {
                copies_start_no_process,
                copies_work_with_a_keeper_without_features,
            }
            paths {
                dots_stay_inside,
                absolute_links_lead_inside,
                loops_are_an_error,
                pipes_and_devices_are_refused,
                magic_links_are_refused,
                removal_follows_no_link,
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
