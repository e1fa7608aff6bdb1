-- Judgements of compactions in the log. The rows that are there already passed the narrower rule and are not looked at again.

alter table deliveries drop constraint deliveries_decision_check;
alter table deliveries
    add constraint deliveries_decision_check check (decision in
        ('allow', 'deny', 'continue', 'revise', 'finalize', 'proceed', 'rewrite', 'block', 'chosen', 'changed', 'compact', 'keep_whole', 'told',
         'failed', 'skipped', 'dead')) not valid;
