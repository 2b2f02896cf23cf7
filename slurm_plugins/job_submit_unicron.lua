-- A snippet for the site's own job_submit.lua, which stays the site's. Near its top:
--
--     pcall(dofile, "/etc/slurm/job_submit_unicron.lua")
--
-- and in slurm_job_submit, before it returns:
--
--     if unicron_job_submit then pcall(unicron_job_submit, job_desc) end
--
-- Jobs that opted in (a key "unicron" in a JSON --comment, or unicron-run in the script) may be
-- requeued, and a requeue appends to their output instead of erasing it. No files, no commands:
-- slurmctld waits for every line of this.

function unicron_job_submit(job_desc)
    local comment, script = job_desc.comment, job_desc.script
    local opted = type(comment) == "string" and comment:find('"unicron"%s*:')
    opted = opted or (type(script) == "string" and script:find("unicron-run", 1, true))
    if opted then
        job_desc.requeue = 1
        job_desc.open_mode = 1 -- append
    end
end
